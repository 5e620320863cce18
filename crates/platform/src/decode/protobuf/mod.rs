//! Protobuf payloads with the schemas of a device profile. A schema is parsed once. A payload is converted to
//! ThingsBoard's JSON, which is decoded like any other.

mod encode;
mod gateway;
mod message;
mod provision;
mod schema;

pub use encode::{
    attribute_response as protobuf_attribute_response, attribute_update as protobuf_attribute_update,
    rpc_response as protobuf_rpc_response,
};
pub use gateway::{
    GatewayKind, gateway_attribute_response as protobuf_gateway_attribute_response,
    gateway_attribute_update as protobuf_gateway_attribute_update, gateway_rpc_request as protobuf_gateway_rpc_request,
};
pub use provision::{answer as protobuf_provisioned, request as protobuf_provision};

use std::borrow::Cow;

use serde_json::Value as Json;

use super::error::PayloadDecodeError;
use super::topic::{PayloadFormat, TopicForm};
use crate::model::DeviceProfile;
use gateway::GatewaySchemas;
use schema::Schema;

/// A profile's payload and topic settings.
#[derive(Debug, Default)]
pub struct ProfileTransport {
    /// Replace `v1/devices/me/telemetry` and `…/attributes`; may have wildcards.
    telemetry_filter: Option<String>,
    attributes_filter: Option<String>,
    /// An additional subscription for `v1/devices/me/attributes`, on which messages are still sent.
    subscription_filter: Option<String>,
    protobuf: Option<ProfileSchemas>,
}

#[derive(Debug)]
struct ProfileSchemas {
    telemetry: Schema,
    attributes: Schema,
    rpc_response: Schema,
    rpc_request: Schema,
    fixed: FixedSchemas,
    gateway: GatewaySchemas,
    /// Accepts JSON if a payload is not Protobuf.
    accepts_json: bool,
    /// Sends JSON on `v1/devices/me/…`.
    sends_json: bool,
}

/// ThingsBoard's messages, independent of the profile.
#[derive(Debug)]
struct FixedSchemas {
    attributes: Schema,
    call: Schema,
    claim: Schema,
}

/// Selects the schema of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadKind {
    Telemetry,
    Attributes,
    RpcResponse,
    /// Request for attributes.
    AttributesRequest,
    /// RPC request of the device.
    RpcRequest,
    Claim,
}

/// The initial schemas of ThingsBoard's editor.
const TELEMETRY_DEFAULT: &str = "message Telemetry { optional double temperature = 1; optional double humidity = 2; InnerObject innerObject = 3;
    message InnerObject { optional string key1 = 1; optional bool key2 = 2; optional double key3 = 3; optional int32 key4 = 4; optional string key5 = 5; } }";
const ATTRIBUTES_DEFAULT: &str =
    "message Attributes { optional string firmwareVersion = 1; optional string serialNumber = 2; }";
const RPC_RESPONSE_DEFAULT: &str = "message RpcResponseMsg { optional string payload = 1; }";
const RPC_REQUEST_DEFAULT: &str =
    "message RpcRequestMsg { optional string method = 1; optional int32 requestId = 2; optional string params = 3; }";

const ATTRIBUTES_REQUEST: &str =
    "message AttributesRequest { optional string clientKeys = 1; optional string sharedKeys = 2; }";
const CALL: &str = "message RpcRequest { optional string method = 1; optional string params = 2; }";
const CLAIM: &str = "message ClaimDevice { optional string secretKey = 1; optional int64 durationMs = 2; }";

impl ProfileTransport {
    /// An error names the invalid schema.
    pub fn of(profile: &DeviceProfile) -> Result<ProfileTransport, String> {
        let json = profile.transport();
        let text = |name: &str| json[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let payload = &json["transportPayloadTypeConfiguration"];
        let is_protobuf = payload["transportPayloadType"].as_str() == Some("PROTOBUF");
        Ok(ProfileTransport {
            telemetry_filter: text("deviceTelemetryTopic"),
            attributes_filter: text("deviceAttributesTopic"),
            subscription_filter: text("deviceAttributesSubscribeTopic"),
            protobuf: if is_protobuf {
                Some(ProfileSchemas::parse(payload)?)
            } else {
                None
            },
        })
    }

    /// The kind of a topic defined by the profile.
    pub fn payload_kind(&self, topic: &str) -> Option<PayloadKind> {
        let is = |filter: &Option<String>| {
            filter
                .as_deref()
                .is_some_and(|filter| mqtt::filter_matches(filter, topic))
        };
        if is(&self.telemetry_filter) {
            Some(PayloadKind::Telemetry)
        } else if is(&self.attributes_filter) {
            Some(PayloadKind::Attributes)
        } else {
            None
        }
    }

    /// Whether the filter is the profile's filter for shared attributes.
    pub fn is_for_attributes(&self, filter: &str) -> bool {
        let own = self.subscription_filter.as_deref();
        own.is_some_and(|own| own == filter || mqtt::filter_matches(own, filter))
    }

    pub fn is_protobuf(&self) -> bool {
        self.protobuf.is_some()
    }

    /// Whether messages to a device in this form are Protobuf.
    pub fn sends_protobuf(&self, form: TopicForm) -> bool {
        self.protobuf.as_ref().is_some_and(|schemas| match form {
            TopicForm::Long => !schemas.sends_json,
            TopicForm::Short(PayloadFormat::Json) => false,
            TopicForm::Short(PayloadFormat::Profile | PayloadFormat::Protobuf) => true,
        })
    }

    /// Converts a payload in the profile's format to JSON.
    pub fn to_json<'a>(&self, kind: PayloadKind, payload: &'a [u8]) -> Result<Cow<'a, [u8]>, PayloadDecodeError> {
        let Some(schemas) = &self.protobuf else {
            return Ok(Cow::Borrowed(payload));
        };
        match schemas.of(kind).to_json(payload) {
            Ok(json) if kind == PayloadKind::RpcRequest => Ok(Cow::Owned(with_params(&json)?)),
            Ok(json) if kind == PayloadKind::Claim => Ok(Cow::Owned(with_duration(&json)?)),
            Ok(json) => Ok(Cow::Owned(json.into_bytes())),
            Err(_) if schemas.accepts_json && super::values::check_json(payload).is_ok() => Ok(Cow::Borrowed(payload)),
            Err(error) => Err(error),
        }
    }
}

impl ProfileTransport {
    /// Converts a gateway message to JSON; `None` if it is JSON already.
    pub fn gateway_to_json(&self, kind: GatewayKind, payload: &[u8]) -> Option<Result<Vec<u8>, PayloadDecodeError>> {
        let schemas = self.protobuf.as_ref()?;
        match schemas.gateway.to_json(kind, payload) {
            Err(_) if schemas.accepts_json && super::values::check_json(payload).is_ok() => None,
            converted => Some(converted),
        }
    }

    /// The device name and number of an RPC request to a gateway. `None` if payloads are JSON, or it is another
    /// message.
    pub fn gateway_called(&self, payload: &[u8]) -> Option<(String, i32)> {
        self.protobuf.as_ref()?.gateway.rpc_target(payload)
    }

    /// Encodes an RPC request with the profile's schema; `params` is JSON. `None` if payloads are JSON.
    pub fn rpc_request(&self, id: i32, method: &str, params: &str) -> Option<Vec<u8>> {
        let schemas = self.protobuf.as_ref()?;
        let params: Json = serde_json::from_str(params).unwrap_or_default();
        let call = serde_json::json!({"method": method, "requestId": id, "params": params});
        Some(schemas.rpc_request.encode(&call))
    }
}

/// Parameters are JSON in a string.
fn with_params(json: &str) -> Result<Vec<u8>, PayloadDecodeError> {
    let mut call: Json = serde_json::from_str(json)?;
    let params = call["params"].as_str().map(str::to_owned).unwrap_or_default();
    call["params"] = serde_json::from_str(&params).unwrap_or_else(|_| Json::from(params));
    Ok(call.to_string().into_bytes())
}

/// 64-bit integers are strings in the JSON of Protobuf.
fn with_duration(json: &str) -> Result<Vec<u8>, PayloadDecodeError> {
    let mut claim: Json = serde_json::from_str(json)?;
    if let Some(ms) = claim["durationMs"].as_str().and_then(|text| text.parse::<i64>().ok()) {
        claim["durationMs"] = Json::from(ms);
    }
    Ok(claim.to_string().into_bytes())
}

impl ProfileSchemas {
    fn parse(json: &Json) -> Result<ProfileSchemas, String> {
        let schema = |name: &str, default: &str| {
            let text = json[name]
                .as_str()
                .filter(|text| !text.trim().is_empty())
                .unwrap_or(default);
            Schema::parse(text).map_err(|problem| format!("{name}: {problem}"))
        };
        let is_set = |name: &str| json[name].as_bool().unwrap_or(false);
        let accepts_json = is_set("enableCompatibilityWithJsonPayloadFormat");
        Ok(ProfileSchemas {
            telemetry: schema("deviceTelemetryProtoSchema", TELEMETRY_DEFAULT)?,
            attributes: schema("deviceAttributesProtoSchema", ATTRIBUTES_DEFAULT)?,
            rpc_response: schema("deviceRpcResponseProtoSchema", RPC_RESPONSE_DEFAULT)?,
            rpc_request: schema("deviceRpcRequestProtoSchema", RPC_REQUEST_DEFAULT)?,
            fixed: FixedSchemas {
                attributes: Schema::parse(ATTRIBUTES_REQUEST)?,
                call: Schema::parse(CALL)?,
                claim: Schema::parse(CLAIM)?,
            },
            gateway: GatewaySchemas::parse()?,
            accepts_json,
            sends_json: accepts_json && is_set("useJsonPayloadFormatForDefaultDownlinkTopics"),
        })
    }

    fn of(&self, kind: PayloadKind) -> &Schema {
        match kind {
            PayloadKind::Telemetry => &self.telemetry,
            PayloadKind::Attributes => &self.attributes,
            PayloadKind::RpcResponse => &self.rpc_response,
            PayloadKind::AttributesRequest => &self.fixed.attributes,
            PayloadKind::RpcRequest => &self.fixed.call,
            PayloadKind::Claim => &self.fixed.claim,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn profile(payload: Json) -> DeviceProfile {
        let mut profile = DeviceProfile::default();
        profile.profile_data["transportConfiguration"] = json!({"type": "MQTT", "deviceTelemetryTopic": "sensors/+/t",
            "deviceAttributesTopic": "a", "deviceAttributesSubscribeTopic": "shared/+", "transportPayloadTypeConfiguration": payload});
        profile
    }

    #[test]
    fn profile_selects_topics_and_format() {
        let json = ProfileTransport::of(&profile(json!({"transportPayloadType": "JSON"}))).unwrap();
        assert_eq!(json.payload_kind("sensors/7/t"), Some(PayloadKind::Telemetry));
        assert_eq!(json.payload_kind("a"), Some(PayloadKind::Attributes));
        assert_eq!(json.payload_kind("v1/devices/me/telemetry"), None);
        assert_eq!(
            json.to_json(PayloadKind::Telemetry, b"{}").unwrap(),
            Cow::Borrowed(b"{}")
        );
        let broken = profile(json!({"transportPayloadType": "PROTOBUF", "deviceTelemetryProtoSchema": "message {"}));
        assert!(
            ProfileTransport::of(&broken)
                .unwrap_err()
                .starts_with("deviceTelemetryProtoSchema: ")
        );
        assert!(
            ProfileTransport::of(&DeviceProfile::default())
                .unwrap()
                .payload_kind("a")
                .is_none()
        );
        for filter in ["shared/+", "shared/7"] {
            assert!(json.is_for_attributes(filter), "{filter}");
        }
        assert!(!json.is_for_attributes("shared/7/8") && !json.is_for_attributes("#"));
    }

    #[test]
    fn long_topics_may_send_json() {
        let transport = |accepts: bool, sends: bool| {
            let payload = json!({"transportPayloadType": "PROTOBUF", "enableCompatibilityWithJsonPayloadFormat": accepts,
                "useJsonPayloadFormatForDefaultDownlinkTopics": sends});
            ProfileTransport::of(&profile(payload)).unwrap()
        };
        let forms = [
            TopicForm::Long,
            TopicForm::Short(PayloadFormat::Profile),
            TopicForm::Short(PayloadFormat::Protobuf),
            TopicForm::Short(PayloadFormat::Json),
        ];
        let protobuf_forms = |transport: &ProfileTransport| forms.map(|form| transport.sends_protobuf(form));
        assert_eq!(protobuf_forms(&transport(true, true)), [false, true, true, false]);
        for (accepts, sends) in [(false, false), (true, false), (false, true)] {
            assert_eq!(protobuf_forms(&transport(accepts, sends)), [true, true, true, false]);
        }
        assert_eq!(protobuf_forms(&ProfileTransport::default()), [false; 4]);
    }

    #[test]
    fn default_schemas_decode_and_may_accept_json() {
        // temperature 22.5, innerObject { key2: true, key4: 7 }.
        let payload = [0x09, 0, 0, 0, 0, 0, 0x80, 0x36, 0x40, 0x1a, 4, 0x10, 1, 0x20, 7];
        let strict = ProfileTransport::of(&profile(json!({"transportPayloadType": "PROTOBUF"}))).unwrap();
        let found = strict.to_json(PayloadKind::Telemetry, &payload).unwrap();
        assert_eq!(
            std::str::from_utf8(&found).unwrap(),
            r#"{"temperature":22.5,"innerObject":{"key2":true,"key4":7}}"#
        );
        assert!(strict.to_json(PayloadKind::Telemetry, b"{\"a\":1}").is_err());
        let lenient = json!({"transportPayloadType": "PROTOBUF", "enableCompatibilityWithJsonPayloadFormat": true});
        let lenient = ProfileTransport::of(&profile(lenient)).unwrap();
        assert_eq!(
            lenient.to_json(PayloadKind::Telemetry, b"{\"a\":1}").unwrap(),
            Cow::Borrowed(b"{\"a\":1}")
        );
    }
}
