/** What must be drawn again when the width changes. */
const redraws = [];

function startTheme() {
  const button = find("#theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const tell = () => button.setAttribute("aria-pressed", String(isDark()));
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    tell();
  });
  system.addEventListener("change", tell);
  tell();
}

function showContents() {
  const links = [...document.querySelectorAll("main > section:not([hidden])")].map((section) =>
    make("a", { href: `#${section.id}` }, section.querySelector("h2").textContent),
  );
  find("nav").append(...links);
}

function watchWidth() {
  let width = document.body.clientWidth;
  new ResizeObserver(() => {
    if (document.body.clientWidth === width) return;
    width = document.body.clientWidth;
    redraws.forEach((redraw) => redraw());
  }).observe(document.body);
}

showSummary();
showCurves();
showBarriers();
showEnsembles();
showBudget();
showWalks();
showPapers();
showRuns();
showContents();
startTheme();
watchWidth();
