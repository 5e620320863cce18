// Sort column and direction of a list, stored in the address like its filters. The server sorts.
import { router } from "./router.svelte";

export class Sorting<T extends string> {
  readonly by = $derived((router.query.get("sort") ?? undefined) as T | undefined);
  readonly order = $derived(this.by === undefined ? undefined : router.query.get("order") === "desc" ? "desc" : "asc");

  /** Cycles through both directions and unsorted. Numbers start in descending order. */
  press(by: T, isNumber: boolean): void {
    const first = isNumber ? "desc" : "asc";
    if (this.by !== by) router.setParameters({ sort: by, order: first });
    else if (this.order === first) router.setParameters({ order: first === "asc" ? "desc" : "asc" });
    else router.setParameters({ sort: "", order: "" });
  }
}
