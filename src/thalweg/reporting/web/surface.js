const [ASIDE, TILT, STEEP] = [0.45, 0.95, 0.42]; // the first view, and the highest point relative to the longest side

const CORNERS = [
  [0, 0],
  [1, 0],
  [1, 1],
  [0, 1],
];
const WIDE = { left: 96, right: 88, above: 44, named: true }; // room for the words on its axes
const NARROW = { left: 68, right: 48, above: 30, named: false };

/** The plane as a surface that can be turned: squares drawn from the farthest to the nearest. */
class Surface {
  constructor(host) {
    this.canvas = make("canvas", {
      role: "img",
      tabindex: 0,
      "aria-labelledby": "surface-text",
      "aria-describedby": "surface-keys",
    });
    this.frame = draw("svg", { "aria-hidden": "true" }); // over it, so that its text has the colours of the page
    this.marked = [];
    host.replaceChildren(this.canvas, this.frame);
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("pointerdown", (event) => this.canvas.setPointerCapture(event.pointerId));
    this.canvas.addEventListener("pointermove", (event) => {
      if (event.buttons) this.rotate(0.01 * event.movementX, 0.01 * event.movementY);
    });
  }

  show(plane, scale, label) {
    Object.assign(this, { grid: scale?.shares, scale, label });
    this.paths = Object.values(plane.paths);
    this.place = ([x, y]) => [
      ((x - plane.x[0]) / (plane.x.at(-1) - plane.x[0])) * (plane.x.length - 1),
      ((y - plane.y[0]) / (plane.y.at(-1) - plane.y[0])) * (plane.y.length - 1),
    ];
    const flat = (plane.y.at(-1) - plane.y[0]) / (plane.x.at(-1) - plane.x[0]);
    this.flat = clamp(flat, 0.25, 4);
    const drawn = (this.paths.length ? this.paths.flat() : plane.corners).map(this.place);
    const front = this.grid && this.hidden(drawn, -1) < this.hidden(drawn, 1);
    this.home = { turn: (front ? 0 : Math.PI) - ASIDE, tilt: TILT };
    if (plane !== this.plane) Object.assign(this, this.home, { plane });
    this.paint();
  }

  /** How many places the surface hides when it is seen from below (-1) or from above (1), straight on. */
  hidden(places, side) {
    const pace = (Math.tan(TILT) * this.flat) / Math.max(1, this.flat) / (this.grid.length - 1) / STEEP;
    return places.filter(([u, v]) => {
      const own = inside(this.grid, u, v) ?? 1; // outside there is nothing to be hidden
      return this.grid.some((row, j) => side * (j - v) > 0 && row[Math.round(u)] - own > pace * Math.abs(j - v));
    }).length;
  }

  mark(t) {
    this.marked = (this.paths ?? []).map((path) => this.place(pointOn(path, t)));
    this.paint();
  }

  key(event) {
    const step = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.08], ArrowDown: [0, 0.08] }[event.key];
    if (event.key === "Home") Object.assign(this, this.home);
    if (!step && event.key !== "Home") return;
    event.preventDefault();
    this.rotate(...(step ?? [0, 0]));
  }

  rotate(turn, tilt) {
    this.turn += turn;
    this.tilt = clamp(this.tilt + tilt, 0.1, 1.5);
    this.paint();
  }

  /** Make the surface fill the canvas as it is turned now. */
  fit(width, height) {
    Object.assign(this, { zoom: 1, centre: [0, 0] });
    const seen = this.grid.flatMap((row, v) => row.map((share, u) => this.project(u, v, share ?? 0)));
    seen.push(...CORNERS.map(([x, y]) => this.floor(x, y)), this.pole()(1));
    const [[left, right], [top, bottom]] = [0, 1].map((axis) => extent(seen.map((point) => point[axis])));
    this.room = width > 480 ? WIDE : NARROW;
    const [across, down] = [width - this.room.left - this.room.right, height - 2 * this.room.above];
    this.zoom = Math.min(across / (right - left), down / (bottom - top));
    const middle = [this.room.left + across / 2, height / 2];
    this.centre = [middle[0] - (this.zoom * (left + right)) / 2, middle[1] - (this.zoom * (top + bottom)) / 2];
  }

  /** A place on the floor, x and y from 0 to 1. */
  floor(x, y, height = 0) {
    return this.project(x * (this.grid[0].length - 1), y * (this.grid.length - 1), height);
  }

  /** The edge of the box on the left, by height. */
  pole() {
    const [x, y] = CORNERS.reduce((a, b) => (this.floor(...a)[0] < this.floor(...b)[0] ? a : b));
    return (height) => this.floor(x, y, height);
  }

  /** Distances along the two near edges of the floor, and on the left what the height stands for. */
  *axes() {
    const near = (one, other) => (one(0.5)[1] > other(0.5)[1] ? one : other);
    const along = near(
      (s) => this.floor(s, 0),
      (s) => this.floor(s, 1),
    );
    const beside = near(
      (s) => this.floor(0, s),
      (s) => this.floor(1, s),
    );
    const [centre, pole] = [this.floor(0.5, 0.5), this.pole()];
    for (const [axis, edge] of [
      [this.plane.x, along],
      [this.plane.y, beside],
    ]) {
      const [low, high] = [axis[0], axis.at(-1)];
      const length = Math.hypot(edge(1)[0] - edge(0)[0], edge(1)[1] - edge(0)[1]);
      const places = ticks(low, high, length / 70).map((tick) => [edge((tick - low) / (high - low)), tickText(tick)]);
      const aside = outward(centre, edge(0.5));
      yield* ruler(edge, aside, places);
      if (this.room.named) yield label(edge(0.5), aside, 34, "distance", "label");
    }
    const marks = [0, 0.5, 1].map((part) => [pole(part), boundText(this.scale, part)]);
    yield* ruler(pole, [-1, 0], marks);
    const [x, y] = [pole(1)[0] - this.room.left + 8, pole(1)[1] - 18];
    yield label([x, y], [1, 0], 0, this.label, "label");
  }

  /** From steps of the grid and a height between 0 and 1 to the screen, with the distance from the eye last. */
  project(u, v, height) {
    const longest = Math.max(1, this.flat);
    const x = (u / (this.grid[0].length - 1) - 0.5) / longest;
    const y = ((v / (this.grid.length - 1) - 0.5) * this.flat) / longest;
    const [cos, sin] = [Math.cos(this.turn), Math.sin(this.turn)];
    const [across, away, up] = [x * cos - y * sin, x * sin + y * cos, STEEP * clamp(height, 0, 1.1)];
    const depth = away * Math.cos(this.tilt) - up * Math.sin(this.tilt);
    const rise = away * Math.sin(this.tilt) + up * Math.cos(this.tilt);
    return [this.centre[0] + this.zoom * across, this.centre[1] - this.zoom * rise, depth];
  }

  paint() {
    if (!this.grid || !this.canvas.clientWidth) return;
    const width = this.canvas.clientWidth;
    const height = Math.round(Math.min(520, Math.max(300, 0.55 * width)));
    const sharp = Math.min(window.devicePixelRatio || 1, 2);
    Object.assign(this.canvas, { width: width * sharp, height: height * sharp });
    this.canvas.style.height = `${height}px`;
    this.fit(width, height);
    const context = this.canvas.getContext("2d");
    context.scale(sharp, sharp);
    context.lineJoin = "round";
    const parts = [...this.squares(), ...this.lines(), ...this.spots()];
    parts.sort((a, b) => b.depth - a.depth).forEach((part) => part.draw(context));
    this.frame.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.frame.replaceChildren(...this.axes());
    this.canvas.dataset.view = `${this.turn.toFixed(3)} ${this.tilt.toFixed(3)}`;
  }

  *squares() {
    for (let j = 0; j + 1 < this.grid.length; j++) {
      for (let i = 0; i + 1 < this.grid[0].length; i++) {
        const corners = [
          [i, j],
          [i + 1, j],
          [i + 1, j + 1],
          [i, j + 1],
        ];
        const shares = corners.map(([u, v]) => this.grid[v][u]);
        if (!shares.every(isNumber)) continue;
        const points = corners.map(([u, v], k) => this.project(u, v, shares[k]));
        const colour = `rgb(${colourAt(shares.reduce((a, b) => a + b) / 4)})`;
        const depth = points.reduce((sum, point) => sum + point[2], 0) / 4;
        yield { depth, draw: (context) => square(context, points, colour) };
      }
    }
  }

  lifted([u, v]) {
    const share = inside(this.grid, u, v);
    return share === null ? null : this.project(u, v, share + 0.012);
  }

  *lines() {
    for (const [name, path] of Object.entries(this.plane.paths)) {
      const points = path.map((place) => this.lifted(this.place(place)));
      const off = this.plane.off[name];
      for (let k = 0; k + 1 < points.length; k += off ? 2 : 1) {
        const [a, b] = [points[k], points[k + 1]];
        if (!a || !b) continue;
        const depth = (a[2] + b[2]) / 2 - 0.03;
        yield { depth, draw: (context) => piece(context, a, b, off ? FADED.opacity : 1) };
      }
    }
  }

  *spots() {
    for (const place of this.marked) {
      const at = this.lifted(place);
      if (at) yield { depth: -Infinity, draw: (context) => spot(context, at) };
    }
  }
}

/** A unit step from one place on the screen towards another. */
function outward([x, y], [toX, toY]) {
  const length = Math.hypot(toX - x, toY - y) || 1;
  return [(toX - x) / length, (toY - y) / length];
}

/** A line with words next to it, `aside` of it. */
function* ruler(edge, aside, places) {
  const [[x1, y1], [x2, y2]] = [edge(0), edge(1)];
  yield draw("line", { class: "axis", x1, y1, x2, y2 });
  for (const [at, text] of places) yield label(at, aside, 12, text);
}

function label([x, y], [right, down], far, text, kind = "") {
  const anchor = Math.abs(right) < 0.35 ? "middle" : right > 0 ? "start" : "end";
  return draw("text", { class: kind, x: x + far * right, y: y + far * down + 4, "text-anchor": anchor }, text);
}

function square(context, points, colour) {
  context.beginPath();
  points.forEach(([x, y]) => context.lineTo(x, y));
  context.closePath();
  context.fillStyle = colour;
  context.fill();
  context.strokeStyle = "rgba(0, 0, 0, 0.16)";
  context.lineWidth = 0.5;
  context.stroke();
}

function piece(context, a, b, opacity) {
  context.globalAlpha = opacity;
  for (const [colour, lineWidth] of [
    ["rgba(255, 255, 255, 0.8)", 4.5],
    ["#000", 2],
  ]) {
    Object.assign(context, { strokeStyle: colour, lineWidth });
    context.beginPath();
    context.moveTo(a[0], a[1]);
    context.lineTo(b[0], b[1]);
    context.stroke();
  }
  context.globalAlpha = 1;
}

function spot(context, [x, y]) {
  context.beginPath();
  context.arc(x, y, 7, 0, 2 * Math.PI);
  Object.assign(context, { fillStyle: "#e25a00", strokeStyle: "#fff", lineWidth: 2 });
  context.fill();
  context.stroke();
}
