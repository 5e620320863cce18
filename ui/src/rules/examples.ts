// Starting points for a new rule: one statement per language feature, and one per event.
import { EVENTS } from "./words";

export interface Example {
  title: string;
  sql: string;
}

export const MESSAGE_EXAMPLES: Example[] = [
  {
    title: "Messages over a limit",
    sql: 'SELECT\n  clientid,\n  payload.temp AS temp\nFROM "demo/#"\nWHERE payload.temp > 30',
  },
  { title: "Every message unchanged", sql: 'SELECT\n  *\nFROM "demo/#"' },
  {
    title: "A topic level as a field",
    sql: "SELECT\n  nth(2, split(topic, '/')) AS room,\n  payload.temp AS temp,\n  timestamp\nFROM \"demo/+/temp\"",
  },
  {
    title: "One output per list element",
    sql:
      "FOREACH payload.sensors AS one\nDO\n  clientid,\n  one.name AS name,\n  one.value AS value\n" +
      'INCASE one.value > 0\nFROM "demo/#"',
  },
  {
    title: "Conditional values",
    sql:
      "SELECT\n  clientid,\n  CASE WHEN payload.temp > 30 THEN 'hot'\n       WHEN payload.temp < 5 THEN 'cold'\n" +
      "       ELSE 'fine' END AS state\nFROM \"demo/#\"",
  },
];

const sentence = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);

export const EVENT_EXAMPLES: Example[] = EVENTS.map(({ name, about }) => ({
  title: sentence(about),
  sql: `SELECT\n  *\nFROM "${name}"`,
}));
