// By which column a list is sorted, and in which direction. The server sorts.

export class Sorting<T extends string> {
  #by = $state<T | undefined>();
  #order = $state<"asc" | "desc">("asc");

  get by(): T | undefined {
    return this.#by;
  }

  get order(): "asc" | "desc" | undefined {
    return this.#by === undefined ? undefined : this.#order;
  }

  /** First in one direction, then in the other, then in none. Of numbers the largest are looked for. */
  press(by: T, isNumber: boolean): void {
    const first = isNumber ? "desc" : "asc";
    if (this.#by !== by) [this.#by, this.#order] = [by, first];
    else if (this.#order === first) this.#order = first === "asc" ? "desc" : "asc";
    else this.#by = undefined;
  }
}
