/** Plotly, fetched when the first chart is drawn, in the colours of the page. */

import { colour, onTheme } from "./theme.js";

// Plotly's maps would write a style sheet into the page, which its policy forbids, unless an element
// with this id is there. No map is drawn here.
const MAPS = "9f215cf04c5486422605d13261cb87401f4e7763b6296af81e98efbc0130da53";
const SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
const drawn = new Map(); // by element, how to draw it again in other colours
let loading = null;

/** Plotly, once its script has been fetched. */
function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const place = document.createElement("meta");
    place.id = MAPS;
    const script = document.createElement("script");
    script.src = new URL("ui/plotly.js", document.baseURI).href;
    script.addEventListener("load", () => resolve(globalThis.Plotly));
    script.addEventListener("error", () => {
      loading = null;
      reject(new Error("the charts' script cannot be fetched"));
    });
    document.head.append(place, script);
  });
  return loading;
}

/** An axis as all charts have it. */
function axis(title, more = {}) {
  return {
    gridcolor: colour("line"),
    linecolor: colour("line"),
    zeroline: false,
    automargin: true,
    tickfont: { size: 11 },
    fixedrange: true,
    ...(more.type === "date" ? { tickangle: 0, nticks: 4 } : {}),
    ...more,
    title: { text: title, font: { size: 12 }, standoff: 8 },
  };
}

/**
 * Draw a chart, or draw it anew.
 *
 * @param element Where; it is given the role of a picture.
 * @param label What a reader who cannot see it is told.
 * @param make From colours to `{data, x, y, y2, shapes, annotations}`; called again for other colours.
 */
export async function chart(element, label, make) {
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", label);
  drawn.set(element, make);
  try {
    const library = await plotly();
    if (drawn.get(element) === make && element.isConnected) await paint(library, element, make);
  } catch (error) {
    element.textContent = `${label} (no chart: ${error.message}.)`;
  }
}

/** A vertical line through a chart. */
export function upright(x, color) {
  return { type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color, width: 2, dash: "dash" } };
}

/** The span of an axis of times: all there are, and a minute at least. */
export function window(times) {
  if (times.length === 0) return undefined;
  const last = times.at(-1).getTime();
  return [new Date(Math.min(times[0].getTime(), last - 60_000)), new Date(last)];
}

/** Hand a chart to Plotly. */
async function paint(library, element, make) {
  const { data, x = {}, y = {}, y2, ...layout } = make(colour);
  const names = data.filter((each) => each.name).length;
  const lines = element.clientWidth < 420 ? names : names > 2 ? 2 : names - 1; // of the legend
  await library.react(
    element,
    data,
    {
      height: 240 + 20 * Math.max(0, lines - 2),
      margin: { l: 40, r: y2 ? 40 : 10, t: names > 1 ? 12 + 20 * lines : 8, b: 28 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: SANS, color: colour("muted"), size: 12 },
      showlegend: names > 1,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { size: 11 } },
      hoverlabel: { bgcolor: colour("surface"), bordercolor: colour("line"), font: { color: colour("ink"), family: SANS } },
      hovermode: "x unified",
      xaxis: axis(x.title ?? "", x),
      yaxis: axis(y.title ?? "", { rangemode: "tozero", ...y }),
      ...(y2 ? { yaxis2: axis(y2.title ?? "", { overlaying: "y", side: "right", rangemode: "tozero", showgrid: false, ...y2 }) } : {}),
      ...layout,
    },
    { displayModeBar: false, responsive: true, doubleClick: false },
  );
}

onTheme(async () => {
  for (const element of drawn.keys()) if (!element.isConnected) drawn.delete(element);
  if (drawn.size === 0) return;
  const library = await plotly();
  for (const [element, make] of drawn) await paint(library, element, make);
});
