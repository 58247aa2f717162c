// Draw the figures that are on the screen, and let the legend's buttons show and hide their traces.
(async function () {
  "use strict";
  const settings = {
    responsive: true,
    displaylogo: false,
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d", "zoomIn2d", "zoomOut2d", "sendChartToCloud"],
  };
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const narrow = window.matchMedia("(max-width: 760px)").matches;
  const plots = Array.from(document.querySelectorAll(".plot"));
  const folds = Array.from(document.querySelectorAll("details"));
  const buttons = Array.from(document.querySelectorAll(".legend button"));

  function open(hash) {
    const section = hash.length > 1 && document.getElementById(hash.slice(1));
    if (section && section.tagName === "DETAILS") section.open = true;
  }

  open(location.hash);
  document.querySelectorAll("nav a").forEach((link) => link.addEventListener("click", () => open(link.hash)));

  // A page that follows a run loads again and again: what the reader has folded, opened and pressed stays so.
  const place = `kdgat ${location.pathname}`;
  const nameOf = (one) => {
    const heading = (one.closest(".group") || one).firstElementChild.textContent;
    return one.id || [one.parentElement.closest("details").id, heading, one.dataset.label].join(" ");
  };
  try {
    const kept = JSON.parse(sessionStorage.getItem(place)) || {};
    for (const fold of folds) fold.open = nameOf(fold) in kept ? kept[nameOf(fold)] : fold.open;
    for (const button of buttons) if (nameOf(button) in kept) button.setAttribute("aria-pressed", kept[nameOf(button)]);
    window.addEventListener("pagehide", () => {
      const pressed = buttons.map((one) => [nameOf(one), one.getAttribute("aria-pressed")]);
      const opened = folds.map((one) => [nameOf(one), one.open]);
      sessionStorage.setItem(place, JSON.stringify(Object.fromEntries([...opened, ...pressed])));
    });
  } catch (error) {
    console.warn(`Nothing is kept over a reload: ${error}`); // a browser may forbid it
  }

  window.addEventListener("beforeprint", () => folds.forEach((one) => (one.open = true)));
  if (!plots.length) return;

  async function unpacked(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (one) => one.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  let figures;
  try {
    figures = JSON.parse(await unpacked("figures"));
    const library = document.createElement("script");
    library.textContent = await unpacked("plotly");
    document.head.append(library);
  } catch (error) {
    document.querySelectorAll(".groups").forEach((groups) => {
      if (!groups.children.length) return;
      groups.className = "missing";
      groups.textContent = `The figures need Chrome 80, Firefox 113, Safari 16.4 or newer; the tables do not (${error}).`;
    });
    return;
  }

  // The stylesheet says what a colour is on a dark page.
  function themed(figure) {
    const style = getComputedStyle(document.documentElement);
    const replace = (whole, hex) => style.getPropertyValue(`--on-dark-${hex.toLowerCase()}`).trim() || whole;
    return JSON.parse(JSON.stringify(figure).replace(/#([0-9a-f]{6})\b/gi, replace));
  }

  function draw(element) {
    element.dataset.drawn = "yes";
    const figure = themed(figures[element.dataset.number]);
    for (const trace of figure.data) trace.visible = isShown(element, trace.legendgroup);
    // Only figures that can be zoomed need buttons.
    const bar = figure.layout.dragmode && !touch ? { displayModeBar: "hover" } : { displayModeBar: false };
    if (touch) figure.layout.dragmode = false; // a finger scrolls the page
    if (narrow && figure.data.some((trace) => typeof (trace.y || [])[0] === "string")) {
      // Long names beside a figure would leave it no room.
      figure.layout.yaxis = { ...figure.layout.yaxis, tickfont: { size: 10 } };
      figure.layout.margin = { ...figure.layout.margin, l: 8, r: 10 };
    }
    Plotly.newPlot(element, figure.data, figure.layout, { ...settings, ...bar });
  }

  function isShown(element, label) {
    const group = element.closest(".group");
    const button = buttons.find((candidate) => group.contains(candidate) && candidate.dataset.label === label);
    return !button || button.getAttribute("aria-pressed") === "true";
  }

  function toggle(button) {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    for (const element of button.closest(".group").querySelectorAll("[data-drawn]")) {
      const traces = element.data.flatMap((trace, index) =>
        trace.legendgroup === button.dataset.label ? [index] : [],
      );
      if (traces.length) Plotly.restyle(element, { visible: shown }, traces);
    }
  }

  buttons.forEach((button) => button.addEventListener("click", () => toggle(button)));
  const observer = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) if (isIntersecting && !target.dataset.drawn) draw(target);
    },
    { rootMargin: "800px" },
  );
  plots.forEach((plot) => observer.observe(plot));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    plots.filter((plot) => plot.dataset.drawn).forEach(draw);
  });
  window.addEventListener("beforeprint", () => plots.forEach(draw));
})();
