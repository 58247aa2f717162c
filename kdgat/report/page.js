// Draw the figures and let the legend's buttons show and hide their traces.
(function () {
  "use strict";
  const settings = {
    responsive: true,
    displaylogo: false,
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  };
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const narrow = window.matchMedia("(max-width: 760px)").matches;

  function draw(element) {
    if (element.dataset.drawn) return;
    element.dataset.drawn = "yes";
    const figure = JSON.parse(document.getElementById(element.id + "-data").textContent);
    for (const trace of figure.data) trace.visible = isShown(element, trace.legendgroup);
    // Only figures that can be zoomed need buttons.
    const buttons = figure.layout.dragmode && !touch ? { displayModeBar: "hover" } : { displayModeBar: false };
    if (touch) figure.layout.dragmode = false; // a finger scrolls the page
    if (narrow && hasNames(figure)) {
      // Long names beside a figure would leave it no room.
      figure.layout.yaxis = { ...figure.layout.yaxis, tickfont: { size: 10 } };
      figure.layout.margin = { ...figure.layout.margin, l: 8, r: 10 };
    }
    Plotly.newPlot(element, figure.data, figure.layout, { ...settings, ...buttons });
  }

  function hasNames(figure) {
    return figure.data.some((trace) => trace.type !== "heatmap" && typeof (trace.y || [])[0] === "string");
  }

  function buttonsOf(element) {
    return Array.from(element.closest(".pictures").querySelectorAll(".legend button"));
  }

  function isShown(element, label) {
    const button = buttonsOf(element).find((candidate) => candidate.dataset.label === label);
    return !button || button.getAttribute("aria-pressed") === "true";
  }

  function toggle(button) {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    for (const element of button.closest(".pictures").querySelectorAll(".plot")) {
      if (!element.dataset.drawn) continue;
      const traces = element.data.flatMap((trace, index) =>
        trace.legendgroup === button.dataset.label ? [index] : [],
      );
      if (traces.length) Plotly.restyle(element, { visible: shown }, traces);
    }
  }

  document.querySelectorAll(".legend button").forEach((button) => {
    button.addEventListener("click", () => toggle(button));
  });

  // First what is near the screen, then the rest while nothing else is to do (printing and searching find it all).
  const plots = Array.from(document.querySelectorAll(".plot"));
  const whenIdle = window.requestIdleCallback || ((callback) => window.setTimeout(callback, 30));

  function drawRest() {
    const next = plots.find((plot) => !plot.dataset.drawn);
    if (!next) return;
    draw(next);
    whenIdle(drawRest);
  }

  if ("IntersectionObserver" in window) {
    const observer = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) {
          if (entry.isIntersecting) {
            observer.unobserve(entry.target);
            draw(entry.target);
          }
        }
      },
      { rootMargin: "800px" },
    );
    plots.forEach((plot) => observer.observe(plot));
  }
  whenIdle(drawRest);
  window.addEventListener("beforeprint", () => plots.forEach(draw));
})();
