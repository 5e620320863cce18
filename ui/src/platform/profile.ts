// Transport and provisioning settings of a device profile in ThingsBoard's format. Unknown settings are preserved.
import type { Json } from "./model";

export interface Payload extends Json {
  transportPayloadType: "JSON" | "PROTOBUF";
  deviceTelemetryProtoSchema?: string;
  deviceAttributesProtoSchema?: string;
  deviceRpcRequestProtoSchema?: string;
  deviceRpcResponseProtoSchema?: string;
  enableCompatibilityWithJsonPayloadFormat?: boolean;
  useJsonPayloadFormatForDefaultDownlinkTopics?: boolean;
}
/** The form edits only these two transport types. */
export interface Transport extends Json {
  type: string;
  deviceTelemetryTopic?: string;
  deviceAttributesTopic?: string;
  sendAckOnValidationException?: boolean;
  transportPayloadTypeConfiguration?: Payload;
}
export interface Provisioning {
  type: "DISABLED" | "ALLOW_CREATE_NEW_DEVICES" | "CHECK_PRE_PROVISIONED_DEVICES" | "X509_CERTIFICATE_CHAIN";
  key: string;
  secret: string;
}

/** Settings of a new profile. */
export const DATA: Json = { configuration: { type: "DEFAULT" } };

export const SCHEMAS = [
  [
    "deviceTelemetryProtoSchema",
    "Telemetry",
    "message Telemetry {\n  optional double temperature = 1;\n  optional double humidity = 2;\n}",
  ],
  [
    "deviceAttributesProtoSchema",
    "Attributes",
    "message Attributes {\n  optional string firmwareVersion = 1;\n  optional string serialNumber = 2;\n}",
  ],
  [
    "deviceRpcRequestProtoSchema",
    "RPC request",
    "message RpcRequestMsg {\n  optional string method = 1;\n  optional int32 requestId = 2;\n  optional " +
      "string params = 3;\n}",
  ],
  ["deviceRpcResponseProtoSchema", "RPC response", "message RpcResponseMsg {\n  optional string payload = 1;\n}"],
] as const;

const JSON_PAYLOAD: Payload = { transportPayloadType: "JSON" };
export const mqtt = (): Transport => ({
  type: "MQTT",
  deviceTelemetryTopic: "v1/devices/me/telemetry",
  deviceAttributesTopic: "v1/devices/me/attributes",
  transportPayloadTypeConfiguration: JSON_PAYLOAD,
  sendAckOnValidationException: false,
});

/** Switches the payload format. Protobuf starts with example schemas. */
export function payload(type: Payload["transportPayloadType"], before: Payload | undefined): Payload {
  if (type === "JSON") return JSON_PAYLOAD;
  const schemas = Object.fromEntries(SCHEMAS.map(([name, , text]) => [name, `syntax = "proto3";\n\n${text}\n`]));
  return {
    enableCompatibilityWithJsonPayloadFormat: false,
    useJsonPayloadFormatForDefaultDownlinkTopics: false,
    ...schemas,
    ...before,
    transportPayloadType: type,
  };
}
