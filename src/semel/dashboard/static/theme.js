// Before the first paint: the chosen theme, if any, and a mark that scripts run.
const chosen = localStorage.getItem("semel-theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
document.documentElement.dataset.script = "";
