// Light or dark colours: the system's setting, or the user's choice.

export type Theme = "system" | "light" | "dark";

const KEY = "tidewire-theme";
const ORDER: Theme[] = ["system", "light", "dark"];
const system = matchMedia("(prefers-color-scheme: dark)");

class ThemeChoice {
  choice = $state<Theme>(stored());
  #isSystemDark = $state(system.matches);

  constructor() {
    system.addEventListener("change", () => {
      this.#isSystemDark = system.matches;
    });
    this.#apply();
  }

  get isDark(): boolean {
    return this.choice === "system" ? this.#isSystemDark : this.choice === "dark";
  }

  next(): void {
    this.choice = ORDER[(ORDER.indexOf(this.choice) + 1) % ORDER.length] ?? "system";
    localStorage.setItem(KEY, this.choice);
    this.#apply();
  }

  #apply(): void {
    if (this.choice === "system") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = this.choice;
  }
}

function stored(): Theme {
  const found = localStorage.getItem(KEY);
  return ORDER.find((theme) => theme === found) ?? "system";
}

export const theme = new ThemeChoice();
