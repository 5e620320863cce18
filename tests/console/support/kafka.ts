// A real Kafka from dev/kafka, which downloads it if it is missing.
import { execFile } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

const SCRIPT = join(import.meta.dirname, "../../../dev/kafka");
const run = promisify(execFile);

export class Kafka {
  private constructor(private directory: string, readonly address: string) {}

  static async start(): Promise<Kafka> {
    const directory = mkdtempSync(join(tmpdir(), "tidewire-console-kafka-"));
    const { stdout } = await run(SCRIPT, ["start", directory]);
    const address = /^TIDEWIRE_KAFKA=(.+)$/m.exec(stdout)?.[1];
    if (!address) throw new Error(`dev/kafka printed no address: ${stdout}`);
    return new Kafka(directory, address);
  }

  async call(verb: "topic" | "kill" | "start", ...more: string[]): Promise<void> {
    await run(SCRIPT, [verb, this.directory, ...more]);
  }

  /** Waits for the first records of a topic. Each is key, tab, value. */
  async records(name: string, count: number): Promise<string[]> {
    const { stdout } = await run(SCRIPT, ["records", this.directory, name, String(count)]);
    return stdout.trimEnd().split("\n");
  }

  async end(): Promise<void> {
    await this.call("kill");
    rmSync(this.directory, { recursive: true });
  }
}
