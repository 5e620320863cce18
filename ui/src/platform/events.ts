// What the platform keeps about the life of a device, as one list: when it was connected and heard, its alarms, calls that were kept for it.
import { alarms, attributes, keptCalls } from "./api";
import type { EntityId } from "./model";

export interface DeviceEvent { at: number; kind: "connection" | "alarm" | "call"; text: string; detail: string }

/** Of each kind, the newest. */
const SHOWN_MAX = 100;
/** Server attributes that are times. Each is the last of its kind: earlier ones are not kept. */
const TIMES: Record<string, string> = {
  lastConnectTime: "Connected",
  lastDisconnectTime: "Disconnected",
  lastActivityTime: "Heard of",
  inactivityAlarmTime: "Fell silent",
};

export async function deviceEvents(entity: EntityId, signal?: AbortSignal): Promise<DeviceEvent[]> {
  const [values, raised, calls] = await Promise.all([
    attributes(entity, "SERVER_SCOPE", signal),
    alarms({ page: 0, pageSize: SHOWN_MAX }, entity, signal),
    keptCalls(entity.id, { page: 0, pageSize: SHOWN_MAX, sortProperty: "createdTime", sortOrder: "DESC" }, signal),
  ]);
  const times = values.flatMap(({ key, value }): DeviceEvent[] => {
    const text = TIMES[key];
    return text && Number(value) > 0 ? [{ at: Number(value), kind: "connection", text, detail: "the last time" }] : [];
  });
  const ofAlarms = raised.data.flatMap((one): DeviceEvent[] => {
    const steps: [number, string][] = [[one.startTs, "began"], [one.assignTs, one.assignee ? `assigned to ${one.assignee.email}` : "assigned to nobody"], [one.ackTs, "acknowledged"], [one.clearTs, "cleared"]];
    return steps.filter(([at]) => at > 0).map(([at, what]) => ({ at, kind: "alarm", text: `${one.type} ${what}`, detail: one.severity.toLowerCase() }));
  });
  const ofCalls = calls.data.map((one): DeviceEvent => ({ at: one.createdTime, kind: "call", text: `Called: ${one.request.body.method}`, detail: `${one.status.toLowerCase()}${one.response == null ? "" : `, answered ${JSON.stringify(one.response)}`}` }));
  return [...times, ...ofAlarms, ...ofCalls].sort((a, b) => b.at - a.at);
}
