// How to connect from elsewhere: code that runs as it is pasted, once what stands in capitals is filled in.
import type { ListenerView } from "../api/generated";

export interface Snippet { name: string; code: string; note: string }
/** What a device logs in with. Empty: it has none of that. */
export interface Login { clientId: string; userName: string; password: string; hasCertificate: boolean }
/** What it says and hears. */
interface Talk { topic: string; payload: string; filter: string }
export interface Place { host: string; port: string; isTls: boolean; listener: string }

const DEMO: Talk = { topic: "demo/hello", payload: '{"temp": 21.5}', filter: "demo/#" };
const OF_DEVICE: Talk = { topic: "v1/devices/me/telemetry", payload: '{"temperature": 21.5}', filter: "v1/devices/me/rpc/request/+" };
const NOBODY: Login = { clientId: "", userName: "", password: "", hasCertificate: false };
const SOMEBODY: Login = { ...NOBODY, userName: "USER", password: "PASSWORD" };

/** Where it connects to; a certificate is asked for under TLS only. */
export function placeOf(hostname: string, listeners: ListenerView[], hasCertificate = false): Place | undefined {
  const tls = listeners.find((listener) => listener.transport === "tls");
  const chosen = (hasCertificate ? undefined : listeners.find((listener) => listener.transport === "tcp")) ?? tls;
  return chosen && { host: hostname.replace(/^\[|\]$/g, ""), port: chosen.address.slice(chosen.address.lastIndexOf(":") + 1), isTls: chosen.transport === "tls", listener: `${chosen.transport}.${chosen.name}` };
}

const isLocal = ({ host }: Place): boolean => host === "localhost" || host.startsWith("127.") || host === "::1";

/** For whoever is let in here. */
export function snippets(hostname: string, listeners: ListenerView[]): Snippet[] {
  const at = placeOf(hostname, listeners);
  if (!at) return [];
  const note = isLocal(at)
    ? "From this machine no password is needed. For others, add an MQTT user, and use this machine's address."
    : "Add an MQTT user first, and fill in its name and password.";
  const login = isLocal(at) ? NOBODY : SOMEBODY;
  const options = mosquitto(at, login);
  return [
    { name: "mosquitto", note, code: `mosquitto_sub ${options} -t ${quoted(DEMO.filter)} -v &\nmosquitto_pub ${options} -t ${DEMO.topic} -m ${quoted(DEMO.payload)}` },
    ...code(at, login, DEMO, note),
    { name: "ESP32 (Arduino)", note: "Libraries: WiFi, PubSubClient. A device is never on this machine: it needs a user.", code: esp32(at, { ...SOMEBODY, clientId: "esp32-1" }, { ...DEMO, topic: "demo/esp32-1" }) },
  ];
}

/** For a device, beside commands. */
export function snippetsOf(at: Place, login: Login): Snippet[] {
  const note = `${login.hasCertificate ? "With its certificate and key as device.pem and device.key. " : ""}${at.isTls ? "ca.pem is the certificate of the authority that this node's own is from." : ""}`;
  return [...code(at, login, OF_DEVICE, note), { name: "ESP32 (Arduino)", note: `Libraries: WiFi, PubSubClient. ${note}`, code: esp32(at, login, OF_DEVICE) }];
}

const code = (at: Place, login: Login, talk: Talk, note: string): Snippet[] => [
  { name: "Python", note: `pip install paho-mqtt. ${note}`, code: python(at, login, talk) },
  { name: "Node.js", note: `npm install mqtt. ${note}`, code: node(at, login, talk) },
];

/** As a shell takes it. */
const quoted = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`;

/** Where to, and as whom. */
export function mosquitto({ host, port, isTls }: Place, { clientId, userName, password, hasCertificate }: Login): string {
  const options: [string, string][] = [["-i", clientId], ["-u", userName], ["-P", password]];
  const tls = isTls ? ` --cafile ca.pem${hasCertificate ? " --cert device.pem --key device.key" : ""}` : "";
  return `-h ${host} -p ${port}${tls}${options.map(([name, value]) => (value ? ` ${name} ${quoted(value)}` : "")).join("")}`;
}

/** A text of Python, JavaScript and C++. */
const literal = (text: string): string => JSON.stringify(text);

function python({ host, port, isTls }: Place, { clientId, userName, password, hasCertificate }: Login, talk: Talk): string {
  return [
    "import paho.mqtt.client as mqtt",
    "",
    "def on_connect(client, userdata, flags, reason_code, properties):",
    "    print(reason_code)",
    `    client.subscribe(${literal(talk.filter)}, qos=1)`,
    `    client.publish(${literal(talk.topic)}, '${talk.payload}', qos=1)`,
    "",
    `client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2${clientId ? `, client_id=${literal(clientId)}` : ""}, protocol=mqtt.MQTTv5)`,
    "client.on_connect = on_connect",
    "client.on_message = lambda client, userdata, message: print(message.topic, message.payload)",
    ...(isTls ? [`client.tls_set("ca.pem"${hasCertificate ? ', "device.pem", "device.key"' : ""})`] : []),
    ...(userName ? [`client.username_pw_set(${literal(userName)}${password ? `, ${literal(password)}` : ""})`] : []),
    `client.connect(${literal(host)}, ${port})`,
    "client.loop_forever()",
  ].join("\n");
}

function node({ host, port, isTls }: Place, { clientId, userName, password, hasCertificate }: Login, talk: Talk): string {
  const texts = Object.entries({ clientId, username: userName, password }).filter(([, value]) => value).map(([name, value]) => `, ${name}: ${literal(value)}`).join("");
  const files = [...(isTls ? [["ca", "ca.pem"]] : []), ...(isTls && hasCertificate ? [["cert", "device.pem"], ["key", "device.key"]] : [])].map(([name, file]) => `, ${name}: fs.readFileSync("${file}")`).join("");
  return [
    'const mqtt = require("mqtt");',
    ...(files ? ['const fs = require("fs");'] : []),
    `const client = mqtt.connect("${isTls ? "mqtts" : "mqtt"}://${host.includes(":") ? `[${host}]` : host}:${port}", { protocolVersion: 5${texts}${files} });`,
    'client.on("connect", () => {',
    `  client.subscribe(${literal(talk.filter)});`,
    `  client.publish(${literal(talk.topic)}, '${talk.payload}', { qos: 1 });`,
    "});",
    'client.on("message", (topic, payload) => console.log(topic, payload.toString()));',
  ].join("\n");
}

function esp32(at: Place, { clientId, userName, password, hasCertificate }: Login, talk: Talk): string {
  const login = userName ? `, ${literal(userName)}, ${password ? literal(password) : "nullptr"}` : "";
  const pem = (name: string) => `const char ${name}[] = R"(-----BEGIN …)";`;
  return [
    "#include <WiFi.h>",
    ...(at.isTls ? ["#include <WiFiClientSecure.h>"] : []),
    "#include <PubSubClient.h>",
    "",
    ...(at.isTls ? ["// What ca.pem has.", pem("CA"), ...(hasCertificate ? ["// What device.pem and device.key have.", pem("CERTIFICATE"), pem("KEY")] : []), ""] : []),
    `${at.isTls ? "WiFiClientSecure" : "WiFiClient"} net;`,
    "PubSubClient mqtt(net);",
    "",
    "void setup() {",
    '  WiFi.begin("NETWORK", "WIFI_PASSWORD");',
    "  while (WiFi.status() != WL_CONNECTED) delay(200);",
    ...(at.isTls ? ['  configTime(0, 0, "pool.ntp.org");', "  net.setCACert(CA);", ...(hasCertificate ? ["  net.setCertificate(CERTIFICATE);", "  net.setPrivateKey(KEY);"] : [])] : []),
    `  mqtt.setServer(${literal(isLocal(at) ? "ADDRESS_OF_THIS_MACHINE" : at.host)}, ${at.port});`,
    "}",
    "",
    "void loop() {",
    `  if (!mqtt.connected()) mqtt.connect(${literal(clientId || "esp32-1")}${login});`,
    "  mqtt.loop();",
    `  mqtt.publish(${literal(talk.topic)}, ${literal(talk.payload)});`,
    "  delay(5000);",
    "}",
  ].join("\n");
}
