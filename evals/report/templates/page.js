"use strict";
// Shows one sample at a time.  All text from the run reaches the page through textContent.

const data = JSON.parse(document.getElementById("data").textContent);
const ROW_HEIGHT = 30; // as in the style sheet
const SPARE_ROWS = 10; // drawn above and below what can be seen
const SHOWN_AT_FIRST = 50000; // characters of a text; tests of megabytes take a browser seconds to lay out

const list = document.getElementById("list");
const rows = document.getElementById("rows");
const article = document.getElementById("sample");
const search = document.getElementById("search");

// One entry per sample; the link is what follows the # of the page's address.
const all = data.problems.flatMap((problem) =>
  problem.samples.map((sample) => ({ problem, sample, link: `${encoded(problem.task)}/${sample.number}` })));
let shown = all;
let current = null;
let wantedStatus = null; // null: every status

function encoded(text) {
  const whole = text.replace(/\p{Surrogate}/gu, spelt); // encodeURIComponent refuses half of a pair
  return encodeURIComponent(whole).replaceAll("%2F", "/");
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; } // a stray %
}

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// Characters that are invisible, move the cursor, or turn the direction of what follows.
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\p{Surrogate}]+/gu;

function spelt(character) {
  const code = character.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code); // the picture of a control character
  return `\\u${code.toString(16).padStart(4, "0")}`;
}

// Appends text in which such characters are spelt out and marked.
function appendText(parent, text) {
  let from = 0;
  for (const match of text.matchAll(CONTROL)) {
    parent.append(text.slice(from, match.index), element("span", "control", Array.from(match[0], spelt).join("")));
    from = match.index + match[0].length;
  }
  parent.append(text.slice(from));
}

function pane(title, text, className) {
  const section = element("section", className);
  section.append(element("h3", "", title));
  const code = element("pre");
  code.tabIndex = 0; // so that the keyboard scrolls it
  if (text === null) code.append(element("span", "none", "none: the completion holds no program"));
  else appendText(code, text.slice(0, SHOWN_AT_FIRST));
  section.append(code);
  if (text !== null && text.length > SHOWN_AT_FIRST) {
    const more = element("button", "more", `show all ${text.length} characters`);
    more.type = "button";
    more.addEventListener("click", () => {
      code.replaceChildren();
      appendText(code, text);
      more.remove();
    });
    section.append(more);
  }
  return section;
}

function showSample(entry) {
  const { problem, sample } = entry;
  const heading = element("h2");
  appendText(heading, `${problem.task}, sample ${sample.number}`);
  const verdict = element("p", "verdict");
  verdict.append(element("strong", sample.status, sample.status));
  const detail = element("span", "detail");
  appendText(detail, sample.detail);
  verdict.append(detail);
  const tokens = sample.tokens === null ? "tokens not counted" : `${sample.tokens} tokens`;
  const facts = element("p", "facts");
  appendText(facts, `${problem.entry_point}(), ${problem.passed} of ${problem.samples.length} samples passed; `
    + `this one: ${sample.seconds} s, ${tokens}, seed ${sample.seed}`);
  const panes = element("div", "panes");
  panes.append(
    pane("Prompt", problem.prompt, "prompt"), pane("Completion, as the model wrote it", sample.completion, "completion"),
    pane("Program that was run", sample.program, "program"), pane("Test", problem.test, "test"));
  article.replaceChildren(heading, verdict, facts, panes);
  article.scrollTop = 0;
}

// Only the rows in sight exist, so that thousands of samples cost no more than a screenful.
function drawRows() {
  const first = Math.max(0, Math.floor(list.scrollTop / ROW_HEIGHT) - SPARE_ROWS);
  const last = Math.min(shown.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW_HEIGHT) + SPARE_ROWS);
  rows.style.height = `${shown.length * ROW_HEIGHT}px`;
  const drawn = [];
  for (let index = first; index < last; index++) {
    const { problem, sample, link } = shown[index];
    const row = element("a");
    row.href = `#${link}`;
    row.style.top = `${index * ROW_HEIGHT}px`;
    row.setAttribute("aria-current", shown[index] === current);
    const task = element("span", "task");
    appendText(task, problem.samples.length > 1 ? `${problem.task} · ${sample.number}` : problem.task);
    row.append(task, element("span", sample.status, sample.status));
    drawn.push(row);
  }
  rows.replaceChildren(...drawn);
}

function scrollToCurrent() {
  const index = shown.indexOf(current);
  if (index < 0) return;
  const top = index * ROW_HEIGHT;
  if (top < list.scrollTop) list.scrollTop = top;
  if (top + ROW_HEIGHT > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW_HEIGHT - list.clientHeight;
}

function choose(entry) {
  current = entry;
  showSample(entry);
  scrollToCurrent();
  drawRows();
}

function applyFilters() {
  const wanted = search.value.trim().toLowerCase();
  shown = all.filter(({ problem, sample }) =>
    (wantedStatus === null || sample.status === wantedStatus) && problem.task.toLowerCase().includes(wanted));
  document.getElementById("count").textContent = `${shown.length} of ${all.length} samples`;
  for (const button of document.querySelectorAll("#filters button"))
    button.setAttribute("aria-pressed", (button.dataset.status || null) === wantedStatus);
  list.scrollTop = 0;
  scrollToCurrent();
  drawRows();
}

function addFilter(name, count) {
  const button = element("button", name || "", `${name || "all"} ${count}`);
  button.type = "button";
  button.dataset.status = name || "";
  button.addEventListener("click", () => { wantedStatus = name; applyFilters(); });
  document.getElementById("filters").append(button);
}

function move(step) {
  if (!shown.length) return;
  const index = shown.indexOf(current);
  const next = index < 0 ? 0 : Math.min(shown.length - 1, Math.max(0, index + step));
  history.replaceState(null, "", `#${shown[next].link}`); // the arrows fill no history
  choose(shown[next]);
}

function followAddress() {
  const wanted = location.hash.slice(1);
  if (!wanted) {
    if (all.length) choose(all[0]);
    return;
  }
  const entry = all.find(({ link }) => decoded(link) === decoded(wanted));
  if (entry) choose(entry);
  else article.replaceChildren(element("p", "none", `This report has no sample ${decoded(wanted)}`));
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("pre, summary")) return;
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    move(event.key === "ArrowDown" ? 1 : -1);
  } else if (event.key === "/" && event.target !== search) {
    event.preventDefault();
    search.focus();
  }
});
search.addEventListener("input", applyFilters);
list.addEventListener("scroll", drawRows);
new ResizeObserver(drawRows).observe(list);
window.addEventListener("hashchange", followAddress);

addFilter(null, all.length);
for (const [name, count] of Object.entries(data.statuses)) if (count) addFilter(name, count);
applyFilters();
followAddress();
