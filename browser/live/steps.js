// The steps below the picture: tabs, one of which is open. What is closed computes nothing.
"use strict";

const STEPS_DOWN = ["text", "inside", "change", "compare"];
state.step = "text";

function mark_step() {
  for (const name of STEPS_DOWN) {
    const open = name === state.step, tab = $("to-" + name);
    $("step-" + name).hidden = !open;
    tab.setAttribute("aria-selected", String(open));
    tab.tabIndex = open ? 0 : -1;
  }
}

$("steps").addEventListener("click", (event) => {
  const tab = event.target.closest("button");
  if (tab) show({ step: tab.id.slice(3) });
});
$("steps").addEventListener("keydown", (event) => {
  const to = moved(event.key, STEPS_DOWN.indexOf(state.step), STEPS_DOWN.length);
  if (to === null) return;
  event.preventDefault();
  show({ step: STEPS_DOWN[to] });
  $("to-" + state.step).focus();
});
follow(["step"], mark_step);
mark_step();
