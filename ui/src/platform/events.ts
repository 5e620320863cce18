// The history of a device as one list: connections, alarms and persistent RPC calls.
import { alarms, attributes, persistentCalls } from "./api";
import type { EntityId } from "./model";

export interface DeviceEvent {
  at: number;
  kind: "connection" | "alarm" | "call";
  text: string;
  detail: string;
}

/** Newest entries of each kind. */
const SHOWN_MAX = 100;
/** Server attributes with times. The platform stores only the latest value of each. */
const TIMES: Record<string, string> = {
  lastConnectTime: "Connected",
  lastDisconnectTime: "Disconnected",
  lastActivityTime: "Last activity",
  inactivityAlarmTime: "Became inactive",
};

export async function deviceEvents(entity: EntityId, signal?: AbortSignal): Promise<DeviceEvent[]> {
  const [values, raised, calls] = await Promise.all([
    attributes(entity, "SERVER_SCOPE", signal),
    alarms({ page: 0, pageSize: SHOWN_MAX }, entity, signal),
    persistentCalls(
      entity.id,
      { page: 0, pageSize: SHOWN_MAX, sortProperty: "createdTime", sortOrder: "DESC" },
      signal,
    ),
  ]);
  const times = values.flatMap(({ key, value }): DeviceEvent[] => {
    const text = TIMES[key];
    return text && Number(value) > 0 ? [{ at: Number(value), kind: "connection", text, detail: "most recent" }] : [];
  });
  const ofAlarms = raised.data.flatMap((one): DeviceEvent[] => {
    const steps: [number, string][] = [
      [one.startTs, "started"],
      [one.assignTs, one.assignee ? `assigned to ${one.assignee.email}` : "unassigned"],
      [one.ackTs, "acknowledged"],
      [one.clearTs, "cleared"],
    ];
    return steps
      .filter(([at]) => at > 0)
      .map(([at, what]) => ({ at, kind: "alarm", text: `${one.type} ${what}`, detail: one.severity.toLowerCase() }));
  });
  const ofCalls = calls.data.map((one): DeviceEvent => ({
    at: one.createdTime,
    kind: "call",
    text: `RPC call: ${one.request.body.method}`,
    detail: `${one.status.toLowerCase()}${one.response == null ? "" : `, answer ${JSON.stringify(one.response)}`}`,
  }));
  return [...times, ...ofAlarms, ...ofCalls].sort((a, b) => b.at - a.at);
}
