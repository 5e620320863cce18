// Node types that the server runs, with a default configuration and the output labels. Nodes of other types are
// preserved.
import type { Json } from "./model";
import catalogue from "./nodecatalogue.json";

export interface NodeType {
  type: string;
  title: string;
  kind: "filter" | "enrichment" | "transformation" | "action" | "external" | "flow";
  labels: string[];
  configuration: Json;
}

const PREFIX = "org.thingsboard.rule.engine.";
/** Generated from the catalogue of the server (crates/platform/src/chain/nodes/catalogue.rs). */
export const NODE_TYPES = catalogue as unknown as NodeType[];

export const typeOf = (type: string): NodeType | undefined => NODE_TYPES.find((one) => one.type === type);

/** Field of a node's script, and ThingsBoard's name of its kind. */
const SCRIPTS: Record<string, [string, ScriptType]> = {
  "filter.TbJsFilterNode": ["jsScript", "filter"],
  "filter.TbJsSwitchNode": ["jsScript", "switch"],
  "transform.TbTransformMsgNode": ["jsScript", "update"],
  "action.TbLogNode": ["jsScript", "string"],
  "action.TbCreateAlarmNode": ["alarmDetailsBuildJs", "json"],
  "action.TbClearAlarmNode": ["alarmDetailsBuildJs", "json"],
  "debug.TbMsgGeneratorNode": ["jsScript", "generate"],
};
export type ScriptType = "filter" | "switch" | "update" | "string" | "json" | "generate";
export const scriptOf = (type: string): { field: string; kind: ScriptType } | undefined => {
  const [field, kind] = SCRIPTS[type.slice(PREFIX.length)] ?? [];
  return type.startsWith(PREFIX) && field && kind ? { field, kind } : undefined;
};
