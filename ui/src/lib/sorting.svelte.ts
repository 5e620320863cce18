// By which column a list is sorted, and in which direction: it stands in the address, as what the list is filtered by. The server sorts.
import { router } from "./router.svelte";

export class Sorting<T extends string> {
  readonly by = $derived((router.query.get("sort") ?? undefined) as T | undefined);
  readonly order = $derived(this.by === undefined ? undefined : router.query.get("order") === "desc" ? "desc" : "asc");

  /** First in one direction, then in the other, then in none. Of numbers the largest are looked for. */
  press(by: T, isNumber: boolean): void {
    const first = isNumber ? "desc" : "asc";
    if (this.by !== by) router.note({ sort: by, order: first });
    else if (this.order === first) router.note({ order: first === "asc" ? "desc" : "asc" });
    else router.note({ sort: "", order: "" });
  }
}
