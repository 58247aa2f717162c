// Figures are drawn when they come near the screen, so that a page with many recordings opens at once.
(function () {
  "use strict";
  const settings = {
    responsive: true,
    displaylogo: false,
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  };
  const touch = window.matchMedia("(pointer: coarse)").matches;

  function draw(element) {
    if (element.dataset.drawn) return;
    element.dataset.drawn = "yes";
    const figure = JSON.parse(document.getElementById(element.id + "-data").textContent);
    for (const trace of figure.data) trace.visible = isShown(element, trace.legendgroup);
    // Only figures that can be zoomed need buttons.
    const buttons = figure.layout.dragmode && !touch ? { displayModeBar: "hover" } : { displayModeBar: false };
    if (touch) figure.layout.dragmode = false; // a finger scrolls the page
    Plotly.newPlot(element, figure.data, figure.layout, { ...settings, ...buttons });
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

  const plots = Array.from(document.querySelectorAll(".plot"));
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
  } else {
    plots.forEach(draw);
  }
  window.addEventListener("beforeprint", () => plots.forEach(draw));
})();
