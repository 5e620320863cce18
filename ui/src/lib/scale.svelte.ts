// Ratio of the current font size to that of an ordinary screen, for sizes that are drawn or placed in pixels.

/** Font size in app.css on an ordinary screen. */
const FONT_PX = 14;

class Scale {
  #value = $state(now());

  constructor() {
    addEventListener("resize", () => {
      this.#value = now();
    });
  }

  get value(): number {
    return this.#value;
  }

  /** Converts pixels of an ordinary screen. */
  px(ordinary: number): number {
    return Math.round(ordinary * this.#value);
  }
}

const now = (): number => Number.parseFloat(getComputedStyle(document.documentElement).fontSize) / FONT_PX || 1;

export const scale = new Scale();
