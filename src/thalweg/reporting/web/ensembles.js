function showEnsembles() {
  const section = find("#ensemble");
  if (!PAGE.reports.length) return missing(section, PAGE.missing.reports);
  const state = { report: PAGE.reports[0], score: null };
  const show = () => {
    // without the calibrated error, which is the error
    const scores = Object.keys(state.report.members[0]).filter((name) => name !== "calibrated_error");
    state.score = scores.includes(state.score) ? state.score : scores[0];
    choose(
      find("#scores"),
      "score",
      scores.map((name) => [name, titled(name)]),
      state.score,
      (name) => {
        state.score = name;
        showGrowth(state.report, name);
      },
    );
    showGrowth(state.report, state.score);
    showMatrix(state.report);
    showReliability(state.report);
  };
  select(
    find("#reports"),
    PAGE.reports.map((report) => report.label),
    (index) => {
      state.report = PAGE.reports[index];
      show();
    },
  );
  show();
  redraws.push(() => showGrowth(state.report, state.score));
  redraws.push(() => showReliability(state.report));
}

function showGrowth(report, score) {
  const [counts, unit] = [report.members.map((_, i) => i + 1), unitOf(score)];
  const series = [
    {
      name: "ensemble up to it",
      x: counts,
      y: report.growth.map((all) => scaled(all[score] ?? null, unit)),
      mark: "diamond",
      style: styleOf(0),
    },
    {
      name: "member alone",
      x: counts,
      y: report.members.map((own) => scaled(own[score] ?? null, unit)),
      line: false,
      mark: "cross",
      style: styleOf(1),
    },
  ];
  const on = report.data ? ` on ${report.data}` : "";
  const range = [0.5, counts.length + 0.5];
  chart(find("#growth .drawing"), {
    series,
    x: "members",
    y: titled(score, report.data ?? ""),
    textId: "growth-text",
    range,
    whole: true,
  });
  const [best, last] = [extent(report.members.map((own) => own[score]))?.[0], report.growth.at(-1)[score]];
  const mean = report.averaged?.[score];
  find("#growth-text").textContent =
    `${sentence(titled(score))}${on}: ${withUnit(last, unit)} for the ensemble of ${counts.length}, ` +
    `${withUnit(best, unit)} for its best member alone` +
    (isNumber(mean) ? `, ${withUnit(mean, unit)} for the mean of all weights as one network.` : ".");
  offer(find("#growth .files"), [[`${report.label} growth`, () => csvOf(growthRows(report))]]);
}

/** Accuracy against confidence, before and after temperature scaling; calibrated predictions lie on the diagonal. */
function showReliability(report) {
  find("#reliability")?.remove();
  const drawn = [
    ["before temperature scaling", report.reliability, report.growth.at(-1).ece],
    ["after temperature scaling", report.calibrated_reliability, report.growth.at(-1).calibrated_ece],
  ].filter(([, bins]) => bins.length);
  if (!drawn.length) return;
  const [host, files] = [make("div", { class: "drawing" }), make("span", { class: "files" })];
  const text = make("figcaption", { id: "reliability-text" });
  const title = make("div", { class: "title" }, make("h3", { id: "reliability-title" }, "Reliability diagram"), files);
  const figure = make("figure", { id: "reliability", "aria-labelledby": "reliability-title" }, title, host, text);
  find("#ensemble .pair").append(figure);
  const percent = (bins, column) => bins.map((bin) => 100 * bin[column]);
  const series = drawn.map(([name, bins], i) => ({
    name,
    x: percent(bins, 2),
    y: percent(bins, 1),
    mark: i ? "diamond" : "dot",
    sizes: bins.map(([share]) => Math.sqrt(0.3 + 4 * share)), // their area grows with the share of the data
    style: styleOf(i),
  }));
  const diagonal = { name: "accuracy = confidence", x: [0, 100], y: [0, 100], style: { stroke: "var(--quiet)" } };
  chart(host, {
    series: [diagonal, ...series],
    x: "confidence (%)",
    y: "accuracy (%)",
    textId: text.id,
    range: [-4, 104],
  });
  text.textContent =
    `The larger a mark, the more of the data it stands for. Expected calibration error ${drawn.map(([name, , ece]) => `${shown(ece)} ${name}`).join(", ")}.` +
    (isNumber(report.temperature) ? ` Temperature ${shown(report.temperature)}, fitted on ${report.fitted_on}.` : "") +
    report.notes.map((note) => ` ${capital(note)}.`).join("");
  const header = ["predictions", "fraction", "accuracy", "confidence"];
  const rows = drawn.flatMap(([name, bins]) => bins.map((bin) => [name, ...bin]));
  offer(files, [[`${report.label} reliability`, () => csvOf([header, ...rows])]]);
}

function growthRows(report) {
  const names = Object.keys(report.growth[0]);
  const own = Object.keys(report.members[0]);
  const header = ["members", ...names.map((name) => `ensemble_${name}`), ...own.map((name) => `member_${name}`)];
  return [
    header,
    ...report.growth.map((all, i) => [i + 1, ...names.map((n) => all[n]), ...own.map((n) => report.members[i][n])]),
  ];
}

function showWalks() {
  const section = find("#walk");
  if (!PAGE.walks.length) {
    section.hidden = true;
    return;
  }
  const state = { walk: PAGE.walks[0], shown: 0 };
  const show = () => {
    const options = state.walk.series.map(({ quantity, data, unit }, index) => [
      String(index),
      titled(quantity, data, unit),
    ]);
    state.shown = Math.min(state.shown, options.length - 1);
    choose(find("#followed"), "followed", options, String(state.shown), (index) => {
      state.shown = Number(index);
      showTrace(state.walk, state.walk.series[state.shown]);
    });
    showTrace(state.walk, state.walk.series[state.shown]);
  };
  select(
    find("#walks"),
    PAGE.walks.map((walk) => walk.label),
    (index) => {
      state.walk = PAGE.walks[index];
      show();
    },
  );
  show();
  redraws.push(() => showTrace(state.walk, state.walk.series[state.shown]));
}

function showTrace(walk, item) {
  const label = titled(item.quantity, item.data, item.unit);
  const values = item.values.map((value) => scaled(value, item.unit));
  const epochs = item.at.map((iteration) => iteration / walk.steps);
  const kept = walk.collected.map((iteration) => item.at.indexOf(iteration)).filter((index) => index >= 0);
  const series = [
    { name: label, x: epochs, y: values, style: styleOf(0) },
    {
      name: "collected",
      x: kept.map((i) => epochs[i]),
      y: kept.map((i) => values[i]),
      line: false,
      mark: "dot",
      style: styleOf(1),
    },
  ];
  chart(find("#trace .drawing"), { series, x: "epoch", y: label, textId: "trace-text" });
  const [low, high] = extent(item.values) ?? [null, null];
  const last = tickText(Number((epochs.at(-1) ?? 0).toPrecision(4)));
  find("#trace-text").textContent =
    `${sentence(label)} between ${withUnit(low, item.unit)} and ${withUnit(high, item.unit)} ` +
    `over ${last} epochs; ${walk.collected.length} networks collected.` +
    (item.every > 1
      ? ` Of every ${item.every} steps one is shown, and those after which a network was collected.`
      : "");
  offer(find("#trace .files"), [
    [`${walk.label} ${label}`, () => csvOf([["iteration", label], ...item.at.map((at, i) => [at, values[i]])])],
  ]);
}
