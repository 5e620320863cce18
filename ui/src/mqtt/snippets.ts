// Code examples that connect to this node. They run as pasted after the placeholders in capitals are replaced.
import type { ListenerView } from "../api/generated";

export interface Snippet {
  name: string;
  code: string;
  note: string;
}
/** Credentials of a device. Empty if it has none of that kind. */
export interface Login {
  clientId: string;
  userName: string;
  password: string;
  hasCertificate: boolean;
}
/** Topics and payload of the example. */
interface Topics {
  topic: string;
  payload: string;
  filter: string;
}
export interface Place {
  host: string;
  port: string;
  isTls: boolean;
  listener: string;
}

const DEMO: Topics = { topic: "demo/hello", payload: '{"temp": 21.5}', filter: "demo/#" };
const OF_DEVICE: Topics = {
  topic: "v1/devices/me/telemetry",
  payload: '{"temperature": 21.5}',
  filter: "v1/devices/me/rpc/request/+",
};
const NO_LOGIN: Login = { clientId: "", userName: "", password: "", hasCertificate: false };
const PLACEHOLDER_LOGIN: Login = { ...NO_LOGIN, userName: "USER", password: "PASSWORD" };

/** Target of the connection. The server asks for a client certificate only over TLS. */
export function placeOf(hostname: string, listeners: ListenerView[], hasCertificate = false): Place | undefined {
  const tls = listeners.find((listener) => listener.transport === "tls");
  const chosen = (hasCertificate ? undefined : listeners.find((listener) => listener.transport === "tcp")) ?? tls;
  return (
    chosen && {
      host: hostname.replace(/^\[|\]$/g, ""),
      port: chosen.address.slice(chosen.address.lastIndexOf(":") + 1),
      isTls: chosen.transport === "tls",
      listener: `${chosen.transport}.${chosen.name}`,
    }
  );
}

const isLocal = ({ host }: Place): boolean => host === "localhost" || host.startsWith("127.") || host === "::1";

/** Examples for an ordinary MQTT client. */
export function snippets(hostname: string, listeners: ListenerView[]): Snippet[] {
  const at = placeOf(hostname, listeners);
  if (!at) return [];
  const note = isLocal(at)
    ? "Clients on this machine need no password. For other clients, add an MQTT user and use this machine's address."
    : "Add an MQTT user first and fill in its name and password.";
  const login = isLocal(at) ? NO_LOGIN : PLACEHOLDER_LOGIN;
  const options = mosquitto(at, login);
  return [
    {
      name: "mosquitto",
      note,
      code:
        `mosquitto_sub ${options} -t ${quoted(DEMO.filter)} -v &\nmosquitto_pub ${options} -t ` +
        `${DEMO.topic} -m ${quoted(DEMO.payload)}`,
    },
    ...code(at, login, DEMO, note),
    {
      name: "ESP32 (Arduino)",
      note: "Libraries: WiFi, PubSubClient. The device connects over the network, so it needs an MQTT user.",
      code: esp32(at, { ...PLACEHOLDER_LOGIN, clientId: "esp32-1" }, { ...DEMO, topic: "demo/esp32-1" }),
    },
  ];
}

/** Programs for a device, in addition to shell commands. */
export function snippetsOf(at: Place, login: Login): Snippet[] {
  const files = login.hasCertificate ? "Store the certificate and key as device.pem and device.key. " : "";
  const authority = at.isTls ? "ca.pem is the certificate of the authority that signed this node's certificate." : "";
  const note = files + authority;
  return [
    ...code(at, login, OF_DEVICE, note),
    { name: "ESP32 (Arduino)", note: `Libraries: WiFi, PubSubClient. ${note}`, code: esp32(at, login, OF_DEVICE) },
  ];
}

const code = (at: Place, login: Login, talk: Topics, note: string): Snippet[] => [
  { name: "Python", note: `pip install paho-mqtt. ${note}`, code: python(at, login, talk) },
  { name: "Node.js", note: `npm install mqtt. ${note}`, code: node(at, login, talk) },
];

/** Quotes a value for a shell. */
const quoted = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`;

/** Connection options of the Mosquitto tools. */
export function mosquitto(
  { host, port, isTls }: Place,
  { clientId, userName, password, hasCertificate }: Login,
): string {
  const options: [string, string][] = [
    ["-i", clientId],
    ["-u", userName],
    ["-P", password],
  ];
  const tls = isTls ? ` --cafile ca.pem${hasCertificate ? " --cert device.pem --key device.key" : ""}` : "";
  return (
    `-h ${host} -p ` +
    `${port}${tls}${options.map(([name, value]) => (value ? ` ${name} ${quoted(value)}` : "")).join("")}`
  );
}

/** A string literal of Python, JavaScript and C++. */
const literal = (text: string): string => JSON.stringify(text);

function python(
  { host, port, isTls }: Place,
  { clientId, userName, password, hasCertificate }: Login,
  talk: Topics,
): string {
  return [
    "import paho.mqtt.client as mqtt",
    "",
    "def on_connect(client, userdata, flags, reason_code, properties):",
    "    print(reason_code)",
    `    client.subscribe(${literal(talk.filter)}, qos=1)`,
    `    client.publish(${literal(talk.topic)}, '${talk.payload}', qos=1)`,
    "",
    "client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2" +
      `${clientId ? `, client_id=${literal(clientId)}` : ""}, protocol=mqtt.MQTTv5)`,
    "client.on_connect = on_connect",
    "client.on_message = lambda client, userdata, message: print(message.topic, message.payload)",
    ...(isTls ? [`client.tls_set("ca.pem"${hasCertificate ? ', "device.pem", "device.key"' : ""})`] : []),
    ...(userName ? [`client.username_pw_set(${literal(userName)}${password ? `, ${literal(password)}` : ""})`] : []),
    `client.connect(${literal(host)}, ${port})`,
    "client.loop_forever()",
  ].join("\n");
}

function node(
  { host, port, isTls }: Place,
  { clientId, userName, password, hasCertificate }: Login,
  talk: Topics,
): string {
  const texts = Object.entries({ clientId, username: userName, password })
    .filter(([, value]) => value)
    .map(([name, value]) => `, ${name}: ${literal(value)}`)
    .join("");
  const files = [
    ...(isTls ? [["ca", "ca.pem"]] : []),
    ...(isTls && hasCertificate
      ? [
          ["cert", "device.pem"],
          ["key", "device.key"],
        ]
      : []),
  ]
    .map(([name, file]) => `, ${name}: fs.readFileSync("${file}")`)
    .join("");
  return [
    'const mqtt = require("mqtt");',
    ...(files ? ['const fs = require("fs");'] : []),
    "const client = " +
      `mqtt.connect("${isTls ? "mqtts" : "mqtt"}://${host.includes(":") ? `[${host}]` : host}:${port}", { ` +
      `protocolVersion: 5${texts}${files} });`,
    'client.on("connect", () => {',
    `  client.subscribe(${literal(talk.filter)});`,
    `  client.publish(${literal(talk.topic)}, '${talk.payload}', { qos: 1 });`,
    "});",
    'client.on("message", (topic, payload) => console.log(topic, payload.toString()));',
  ].join("\n");
}

function esp32(at: Place, { clientId, userName, password, hasCertificate }: Login, talk: Topics): string {
  const login = userName ? `, ${literal(userName)}, ${password ? literal(password) : "nullptr"}` : "";
  const pem = (name: string) => `const char ${name}[] = R"(-----BEGIN …)";`;
  return [
    "#include <WiFi.h>",
    ...(at.isTls ? ["#include <WiFiClientSecure.h>"] : []),
    "#include <PubSubClient.h>",
    "",
    ...(at.isTls
      ? [
          "// Contents of ca.pem.",
          pem("CA"),
          ...(hasCertificate ? ["// Contents of device.pem and device.key.", pem("CERTIFICATE"), pem("KEY")] : []),
          "",
        ]
      : []),
    `${at.isTls ? "WiFiClientSecure" : "WiFiClient"} net;`,
    "PubSubClient mqtt(net);",
    "",
    "void setup() {",
    '  WiFi.begin("NETWORK", "WIFI_PASSWORD");',
    "  while (WiFi.status() != WL_CONNECTED) delay(200);",
    ...(at.isTls
      ? [
          '  configTime(0, 0, "pool.ntp.org");',
          "  net.setCACert(CA);",
          ...(hasCertificate ? ["  net.setCertificate(CERTIFICATE);", "  net.setPrivateKey(KEY);"] : []),
        ]
      : []),
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
