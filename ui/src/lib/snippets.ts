// How to connect from elsewhere: code that runs as it is pasted, once the user and its password are filled in.
import type { ListenerView } from "../api/generated";

export interface Snippet { name: string; code: string; note: string }

const portOf = (listener: ListenerView): string => listener.address.slice(listener.address.lastIndexOf(":") + 1);

export function snippets(hostname: string, listeners: ListenerView[]): Snippet[] {
  const host = hostname.replace(/^\[|\]$/g, "");
  const tls = listeners.find((listener) => listener.transport === "tls");
  const tcp = listeners.find((listener) => listener.transport === "tcp") ?? tls;
  if (!tcp) return [];
  const isTls = tcp.transport === "tls";
  const port = portOf(tcp);
  const isLocal = host === "localhost" || host.startsWith("127.") || host === "::1";
  const note = isLocal
    ? "From this machine no password is needed. For others, add an MQTT user, and use this machine's address."
    : "Add an MQTT user first, and fill in its name and password.";
  const mosquitto = `-h ${host} -p ${port}${isTls ? " --cafile ca.pem" : ""}${isLocal ? "" : " -u USER -P PASSWORD"}`;
  return [
    { name: "mosquitto", note, code: `mosquitto_sub ${mosquitto} -t 'demo/#' -v &\nmosquitto_pub ${mosquitto} -t demo/hello -m '{"temp": 21.5}'` },
    { name: "Python", note: `pip install paho-mqtt. ${note}`, code: python(host, port, isTls, isLocal) },
    { name: "Node.js", note: `npm install mqtt. ${note}`, code: node(host, port, isTls, isLocal) },
    { name: "ESP32 (Arduino)", note: "Libraries: WiFi, PubSubClient. A device is never on this machine: it needs a user.", code: esp32(host, port) },
  ];
}

function python(host: string, port: string, isTls: boolean, isLocal: boolean): string {
  return [
    "import paho.mqtt.client as mqtt",
    "",
    "def on_connect(client, userdata, flags, reason_code, properties):",
    "    print(reason_code)",
    '    client.subscribe("demo/#", qos=1)',
    '    client.publish("demo/hello", \'{"temp": 21.5}\', qos=1)',
    "",
    "client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)",
    "client.on_connect = on_connect",
    "client.on_message = lambda client, userdata, message: print(message.topic, message.payload)",
    ...(isTls ? ['client.tls_set("ca.pem")'] : []),
    ...(isLocal ? [] : ['client.username_pw_set("USER", "PASSWORD")']),
    `client.connect("${host}", ${port})`,
    "client.loop_forever()",
  ].join("\n");
}

function node(host: string, port: string, isTls: boolean, isLocal: boolean): string {
  const login = isLocal ? "" : ', username: "USER", password: "PASSWORD"';
  const ca = isTls ? ', ca: require("fs").readFileSync("ca.pem")' : "";
  return [
    'const mqtt = require("mqtt");',
    `const client = mqtt.connect("${isTls ? "mqtts" : "mqtt"}://${host}:${port}", { protocolVersion: 5${login}${ca} });`,
    'client.on("connect", () => {',
    '  client.subscribe("demo/#");',
    '  client.publish("demo/hello", JSON.stringify({ temp: 21.5 }), { qos: 1 });',
    "});",
    'client.on("message", (topic, payload) => console.log(topic, payload.toString()));',
  ].join("\n");
}

function esp32(host: string, port: string): string {
  return [
    "#include <WiFi.h>",
    "#include <PubSubClient.h>",
    "",
    "WiFiClient net;",
    "PubSubClient mqtt(net);",
    "",
    "void setup() {",
    '  WiFi.begin("NETWORK", "WIFI_PASSWORD");',
    "  while (WiFi.status() != WL_CONNECTED) delay(200);",
    `  mqtt.setServer("${host}", ${port});`,
    "}",
    "",
    "void loop() {",
    '  if (!mqtt.connected()) mqtt.connect("esp32-1", "USER", "PASSWORD");',
    "  mqtt.loop();",
    '  mqtt.publish("demo/esp32-1", "{\\"temp\\": 21.5}");',
    "  delay(5000);",
    "}",
  ].join("\n");
}
