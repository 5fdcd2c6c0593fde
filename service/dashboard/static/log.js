/* The log of a run's attempt: its last lines, updated while the attempt runs. */
"use strict";
(() => {
  const REST_MS = 2000, TAIL = 400, MOST_CHARACTERS = 400000;
  const part = document.querySelector("[data-log]");
  const form = part.querySelector(".controls"), box = part.querySelector("pre"), note = part.querySelector("[data-log-note]"), whole = part.querySelector("[data-log-whole]");
  const { run, attempt } = form.elements;
  let turn = 0;

  function chooseRun(wanted) {
    const logged = run.selectedOptions[0].dataset.attempts.split(" ").filter(Boolean);
    attempt.replaceChildren(...logged.map((number) => new Option(number)));
    attempt.value = logged.includes(wanted) ? wanted : logged.at(-1) ?? "";
  }

  async function ask(query) {
    const answer = await fetch(`${part.dataset.source}${run.value}/logs?${new URLSearchParams(query)}`);
    if (!answer.ok) throw new Error(Charts.told(await answer.json()));
    return { text: await answer.text(), offset: answer.headers.get("X-Log-Offset"), ended: answer.headers.get("X-Log-Ended") === "true" };
  }

  function add(text) {
    const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 8;
    box.append(text);
    if (box.textContent.length > MOST_CHARACTERS) box.textContent = box.textContent.slice(-MOST_CHARACTERS);
    if (atEnd) box.scrollTop = box.scrollHeight;
  }

  async function show() {
    const mine = ++turn;
    box.textContent = "";
    if (!attempt.value) {
      const begun = run.selectedOptions[0].dataset.begun !== "0";
      note.textContent = begun ? "No log of this run is in the storage of the service." : "The run has not started; reload the page when it has.";
      return;
    }
    whole.href = `${part.dataset.source}${run.value}/logs?attempt=${attempt.value}`;
    note.textContent = "Loading…";
    try {
      let last = await ask({ attempt: attempt.value, tail: TAIL });
      while (mine === turn) {
        add(last.text);
        note.textContent = last.ended ? (box.textContent ? "" : "It printed nothing.") : "The attempt is running; new lines appear here.";
        if (last.ended) return;
        do await new Promise((go) => setTimeout(go, REST_MS)); while (document.hidden);
        if (mine === turn) last = await ask({ attempt: attempt.value, offset: last.offset });
      }
    } catch (error) {
      if (mine === turn) note.textContent = error instanceof TypeError ? "The service does not answer; choose the run again to retry." : error.message;
    }
  }

  run.addEventListener("change", () => { chooseRun(); Address.set("log.attempt"); show(); });
  attempt.addEventListener("change", show);
  document.addEventListener("DOMContentLoaded", () => { chooseRun(Address.get("log.attempt")); show(); });
})();
