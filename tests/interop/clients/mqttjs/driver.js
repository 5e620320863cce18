// Driver around MQTT.js. The protocol is described in tests/interop/README.md.
"use strict";

const fs = require("node:fs");
const readline = require("node:readline");
const mqtt = require("mqtt");

const connections = new Map();

// Names of the protocol of drivers, and of the library.
const NAMES = {
  session_expiry_interval: "sessionExpiryInterval",
  receive_maximum: "receiveMaximum",
  maximum_packet_size: "maximumPacketSize",
  topic_alias_maximum: "topicAliasMaximum",
  will_delay_interval: "willDelayInterval",
  payload_format_indicator: "payloadFormatIndicator",
  message_expiry_interval: "messageExpiryInterval",
  content_type: "contentType",
  response_topic: "responseTopic",
  correlation_data: "correlationData",
  topic_alias: "topicAlias",
  subscription_identifiers: "subscriptionIdentifier",
  assigned_client_identifier: "assignedClientIdentifier",
  user_properties: "userProperties",
};

function send(event) {
  process.stdout.write(JSON.stringify(event) + "\n");
}

function toLibrary(fields) {
  const properties = {};
  for (const [name, value] of Object.entries(fields || {})) {
    if (name === "correlation_data") properties.correlationData = Buffer.from(value, "base64");
    else if (name === "user_properties") properties.userProperties = pairsToObject(value);
    else if (name === "payload_format_indicator") properties.payloadFormatIndicator = value === 1;
    else properties[NAMES[name]] = value;
  }
  return properties;
}

// The library keeps user properties in an object: names in order of their first use.
function pairsToObject(pairs) {
  const object = {};
  for (const [name, value] of pairs) (object[name] ||= []).push(value);
  return object;
}

function fromLibrary(properties) {
  const fields = {};
  for (const [name, theirs] of Object.entries(NAMES)) {
    const value = properties?.[theirs];
    if (value === undefined) continue;
    if (name === "correlation_data") fields[name] = value.toString("base64");
    else if (name === "user_properties") {
      fields[name] = Object.entries(value).flatMap(([key, values]) => [values].flat().map((text) => [key, text]));
    } else if (name === "subscription_identifiers") fields[name] = [value].flat();
    else if (name === "payload_format_indicator") fields[name] = Number(value);
    else fields[name] = value;
  }
  return fields;
}

function clientOptions(request) {
  const isV5 = request.version === 5;
  const options = {
    protocolVersion: request.version,
    protocolId: request.version === 3 ? "MQIsdp" : "MQTT",
    clientId: request.client_id,
    clean: request.clean,
    keepalive: request.keep_alive,
    username: request.username,
    password: request.password,
    reconnectPeriod: 0,
    resubscribe: false,
    connectTimeout: 15000,
  };
  if (isV5) options.properties = toLibrary(request.properties);
  if (request.will) {
    const { topic, payload, qos, retain, properties } = request.will;
    options.will = { topic, payload: Buffer.from(payload, "base64"), qos, retain };
    if (isV5) options.will.properties = toLibrary(properties);
  }
  for (const file of ["ca", "cert", "key"]) if (request[file]) options[file] = fs.readFileSync(request[file]);
  return options;
}

function url(request) {
  const scheme = { tcp: "mqtt", tls: "mqtts", ws: "ws", wss: "wss" }[request.transport];
  const path = request.transport.startsWith("ws") ? "/mqtt" : "";
  return `${scheme}://${request.host}:${request.port}${path}`;
}

function connect(name, request) {
  const client = mqtt.connect(url(request), clientOptions(request));
  const connection = { client, isV5: request.version === 5, isLeaving: false, reason: undefined, codes: new Map() };
  connections.set(name, connection);
  client.on("message", (topic, payload, packet) => {
    send({
      as: name,
      event: "message",
      topic,
      payload: payload.toString("base64"),
      qos: packet.qos,
      retain: packet.retain,
      dup: packet.dup,
      properties: fromLibrary(packet.properties),
    });
  });
  client.on("disconnect", (packet) => (connection.reason = packet.reasonCode));
  client.on("packetreceive", (packet) => {
    // The library does not hand these reason codes to its user.
    if (packet.cmd === "unsuback") connection.codes.set("unsuback", packet.granted?.[0]);
    if (packet.cmd === "puback" || packet.cmd === "pubrec") connection.codes.set(packet.messageId, packet.reasonCode || 0);
  });
  return new Promise((resolve, reject) => {
    client.once("connect", (packet) => {
      client.once("close", () => {
        if (!connection.isLeaving) send({ as: name, event: "closed", reason_code: connection.reason });
      });
      resolve({ session_present: packet.sessionPresent, properties: fromLibrary(packet.properties) });
    });
    client.on("error", (error) => {
      if (typeof error.code === "number") resolve({ refused: true, reason_code: error.code, text: error.message });
      else reject(error);
    });
    client.once("close", () => reject(new Error("closed before CONNACK")));
  });
}

async function subscribe({ client, isV5 }, request) {
  const options = { qos: request.qos || 0 };
  if (isV5) {
    options.nl = request.no_local || false;
    options.rap = request.retain_as_published || false;
    options.rh = request.retain_handling || 0;
    if (request.identifier) options.properties = { subscriptionIdentifier: request.identifier };
  }
  try {
    const granted = await client.subscribeAsync(request.filter, options);
    return { reason_code: granted[0].qos };
  } catch (error) {
    // A refused filter is an error to the library.
    if (error.packet?.granted) return { reason_code: error.packet.granted[0] };
    throw error;
  }
}

async function unsubscribe(connection, request) {
  await connection.client.unsubscribeAsync(request.filter);
  return { reason_code: connection.codes.get("unsuback") };
}

async function publish({ client, isV5, codes }, request) {
  const options = { qos: request.qos, retain: request.retain };
  if (isV5) options.properties = toLibrary(request.properties);
  const topic = request.alias_is_known ? "" : request.topic;
  try {
    const packet = await client.publishAsync(topic, Buffer.from(request.payload, "base64"), options);
    return { reason_code: codes.get(packet?.messageId) };
  } catch (error) {
    if (typeof error.code === "number") return { reason_code: error.code };
    throw error;
  }
}

async function disconnect(connection, request) {
  connection.isLeaving = true;
  const properties = toLibrary(request.properties);
  await connection.client.endAsync(false, connection.isV5 ? { reasonCode: 0, properties } : {});
  return {};
}

async function forget(connection) {
  connection.isLeaving = true;
  // `end(true)` would send DISCONNECT first.
  connection.client.stream.destroy();
  return {};
}

const COMMANDS = { subscribe, unsubscribe, publish, disconnect, forget };

async function perform(request) {
  try {
    const work =
      request.do === "connect" ? connect(request.as, request) : COMMANDS[request.do](connections.get(request.as), request);
    send({ id: request.id, ...(await work) });
  } catch (error) {
    send({ id: request.id, error: `${error.message} ${error.code ?? ""}`.trim() });
  }
}

const lines = readline.createInterface({ input: process.stdin });
lines.on("line", (line) => perform(JSON.parse(line)));
lines.on("close", () => process.exit(0));
