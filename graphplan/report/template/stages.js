// Stage graph and table: choosing a stage in one marks it everywhere; heads of the table sort.

function markChosen() {
  for (const element of document.querySelectorAll("#stage-graph .stage, #stage-table tbody tr")) {
    element.classList.toggle("chosen", view.stage !== null && Number(element.dataset.stage) === view.stage);
  }
  for (const wire of document.querySelectorAll("#stage-graph .wire")) {
    const ends = [Number(wire.dataset.src), Number(wire.dataset.dst)];
    wire.classList.toggle("chosen", view.stage !== null && ends.includes(view.stage));
  }
}

function listenToStages() {
  for (const element of document.querySelectorAll("#stage-graph .stage, #stage-table tbody tr")) {
    const choose = () => view.choose(Number(element.dataset.stage));
    element.addEventListener("click", choose);
    element.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      choose();
    });
  }
  const heads = [...document.querySelectorAll("#stage-table th")];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => sortTable(heads, column)));
}

function sortTable(heads, column) {
  const body = document.querySelector("#stage-table tbody");
  const descending = heads[column].getAttribute("aria-sort") === "ascending";
  const isText = heads[column].classList.contains("text");
  const valueOf = (row) => row.children[column].dataset.value;
  const rows = [...body.children].sort((a, b) => {
    const order = isText ? valueOf(a).localeCompare(valueOf(b), "en", { numeric: true }) : Number(valueOf(a)) - Number(valueOf(b));
    return (descending ? -order : order) || Number(a.dataset.stage) - Number(b.dataset.stage);
  });
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
  body.replaceChildren(...rows);
}
