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
    // Only figures that can be zoomed need buttons.
    const buttons = figure.layout.dragmode ? { displayModeBar: "hover" } : { displayModeBar: false };
    if (touch) figure.layout.dragmode = false; // a finger scrolls the page
    Plotly.newPlot(element, figure.data, figure.layout, { ...settings, ...buttons });
  }

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
