// Draw the figures that are on the screen, and let the legend's buttons show and hide their traces.
(async function () {
  "use strict";
  const settings = {
    responsive: true,
    displaylogo: false,
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  };
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const narrow = window.matchMedia("(max-width: 760px)").matches;
  const plots = Array.from(document.querySelectorAll(".plot"));

  function open(hash) {
    const section = hash.length > 1 && document.getElementById(hash.slice(1));
    if (section && section.tagName === "DETAILS") section.open = true;
  }

  open(location.hash);
  document.querySelectorAll("nav a").forEach((link) => link.addEventListener("click", () => open(link.hash)));
  if (!plots.length) return;

  async function unpacked(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (one) => one.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  const figures = JSON.parse(await unpacked("figures"));
  const library = document.createElement("script");
  library.textContent = await unpacked("plotly");
  document.head.append(library);

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
    const buttons = figure.layout.dragmode && !touch ? { displayModeBar: "hover" } : { displayModeBar: false };
    if (touch) figure.layout.dragmode = false; // a finger scrolls the page
    if (narrow && figure.data.some((trace) => typeof (trace.y || [])[0] === "string")) {
      // Long names beside a figure would leave it no room.
      figure.layout.yaxis = { ...figure.layout.yaxis, tickfont: { size: 10 } };
      figure.layout.margin = { ...figure.layout.margin, l: 8, r: 10 };
    }
    Plotly.newPlot(element, figure.data, figure.layout, { ...settings, ...buttons });
  }

  function isShown(element, label) {
    const buttons = Array.from(element.closest(".group").querySelectorAll(".legend button"));
    const button = buttons.find((candidate) => candidate.dataset.label === label);
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

  document.querySelectorAll(".legend button").forEach((button) => {
    button.addEventListener("click", () => toggle(button));
  });
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
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((one) => (one.open = true));
    plots.forEach(draw);
  });
})();
