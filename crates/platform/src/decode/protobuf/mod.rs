//! Protobuf payloads, by the schemas that a device profile has: a schema is read once, a payload becomes the JSON that
//! ThingsBoard makes of it, and that is decoded as any other.

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

use super::error::DecodeError;
use super::topic::{Form, Format};
use crate::model::DeviceProfile;
use gateway::GatewaySchemas;
use schema::Schema;

/// What a profile says of payloads and topics.
#[derive(Debug, Default)]
pub struct Transport {
    /// In place of `v1/devices/me/telemetry` and `…/attributes`; may have wildcards.
    telemetry_filter: Option<String>,
    attributes_filter: Option<String>,
    /// What a device may subscribe to in place of `v1/devices/me/attributes`; it is told there all the same.
    subscription_filter: Option<String>,
    protobuf: Option<Schemas>,
}

#[derive(Debug)]
struct Schemas {
    telemetry: Schema,
    attributes: Schema,
    rpc_response: Schema,
    rpc_request: Schema,
    asked: Asked,
    gateway: GatewaySchemas,
    /// What is not Protobuf may be JSON.
    accepts_json: bool,
    /// What devices are told on `v1/devices/me/…` is JSON.
    tells_json: bool,
}

/// Messages that are ThingsBoard's own, whatever the profile says.
#[derive(Debug)]
struct Asked {
    attributes: Schema,
    call: Schema,
    claim: Schema,
}

/// Which schema a payload has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadKind {
    Telemetry,
    Attributes,
    RpcResponse,
    /// A question for attributes.
    AttributesRequest,
    /// A call of the device.
    RpcRequest,
    Claim,
}

/// The schemas that ThingsBoard's editor begins with.
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

impl Transport {
    /// An error names the schema that cannot be read.
    pub fn of(profile: &DeviceProfile) -> Result<Transport, String> {
        let json = profile.transport();
        let text = |name: &str| json[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let payload = &json["transportPayloadTypeConfiguration"];
        let is_protobuf = payload["transportPayloadType"].as_str() == Some("PROTOBUF");
        Ok(Transport {
            telemetry_filter: text("deviceTelemetryTopic"),
            attributes_filter: text("deviceAttributesTopic"),
            subscription_filter: text("deviceAttributesSubscribeTopic"),
            protobuf: if is_protobuf {
                Some(Schemas::parse(payload)?)
            } else {
                None
            },
        })
    }

    /// A topic of the profile's own.
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

    /// A filter for shared attributes that is the profile's own.
    pub fn is_for_attributes(&self, filter: &str) -> bool {
        let own = self.subscription_filter.as_deref();
        own.is_some_and(|own| own == filter || mqtt::filter_matches(own, filter))
    }

    pub fn is_protobuf(&self) -> bool {
        self.protobuf.is_some()
    }

    /// Whether what a device is told in this form is Protobuf.
    pub fn tells_protobuf(&self, form: Form) -> bool {
        self.protobuf.as_ref().is_some_and(|schemas| match form {
            Form::Long => !schemas.tells_json,
            Form::Short(Format::Json) => false,
            Form::Short(Format::Profile | Format::Protobuf) => true,
        })
    }

    /// JSON of a payload in the profile's format.
    pub fn to_json<'a>(&self, kind: PayloadKind, payload: &'a [u8]) -> Result<Cow<'a, [u8]>, DecodeError> {
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

impl Transport {
    /// What a gateway says; `None`: it is JSON.
    pub fn gateway_to_json(&self, kind: GatewayKind, payload: &[u8]) -> Option<Result<Vec<u8>, DecodeError>> {
        let schemas = self.protobuf.as_ref()?;
        match schemas.gateway.to_json(kind, payload) {
            Err(_) if schemas.accepts_json && super::values::check_json(payload).is_ok() => None,
            said => Some(said),
        }
    }

    /// Which device was called by a gateway's message, and the number of the call. `None`: payloads are JSON, or it is none.
    pub fn gateway_called(&self, payload: &[u8]) -> Option<(String, i32)> {
        self.protobuf.as_ref()?.gateway.called(payload)
    }

    /// A call of the server, by the profile's schema; `params` is JSON. `None`: payloads are JSON.
    pub fn rpc_request(&self, id: i32, method: &str, params: &str) -> Option<Vec<u8>> {
        let schemas = self.protobuf.as_ref()?;
        let params: Json = serde_json::from_str(params).unwrap_or_default();
        let call = serde_json::json!({"method": method, "requestId": id, "params": params});
        Some(schemas.rpc_request.encode(&call))
    }
}

/// Parameters are JSON in a text.
fn with_params(json: &str) -> Result<Vec<u8>, DecodeError> {
    let mut call: Json = serde_json::from_str(json)?;
    let params = call["params"].as_str().map(str::to_owned).unwrap_or_default();
    call["params"] = serde_json::from_str(&params).unwrap_or_else(|_| Json::from(params));
    Ok(call.to_string().into_bytes())
}

/// A number of 64 bits is a text in the JSON of Protobuf.
fn with_duration(json: &str) -> Result<Vec<u8>, DecodeError> {
    let mut claim: Json = serde_json::from_str(json)?;
    if let Some(ms) = claim["durationMs"].as_str().and_then(|text| text.parse::<i64>().ok()) {
        claim["durationMs"] = Json::from(ms);
    }
    Ok(claim.to_string().into_bytes())
}

impl Schemas {
    fn parse(json: &Json) -> Result<Schemas, String> {
        let schema = |name: &str, default: &str| {
            let text = json[name]
                .as_str()
                .filter(|text| !text.trim().is_empty())
                .unwrap_or(default);
            Schema::parse(text).map_err(|problem| format!("{name}: {problem}"))
        };
        let is_set = |name: &str| json[name].as_bool().unwrap_or(false);
        let accepts_json = is_set("enableCompatibilityWithJsonPayloadFormat");
        Ok(Schemas {
            telemetry: schema("deviceTelemetryProtoSchema", TELEMETRY_DEFAULT)?,
            attributes: schema("deviceAttributesProtoSchema", ATTRIBUTES_DEFAULT)?,
            rpc_response: schema("deviceRpcResponseProtoSchema", RPC_RESPONSE_DEFAULT)?,
            rpc_request: schema("deviceRpcRequestProtoSchema", RPC_REQUEST_DEFAULT)?,
            asked: Asked {
                attributes: Schema::parse(ATTRIBUTES_REQUEST)?,
                call: Schema::parse(CALL)?,
                claim: Schema::parse(CLAIM)?,
            },
            gateway: GatewaySchemas::parse()?,
            accepts_json,
            tells_json: accepts_json && is_set("useJsonPayloadFormatForDefaultDownlinkTopics"),
        })
    }

    fn of(&self, kind: PayloadKind) -> &Schema {
        match kind {
            PayloadKind::Telemetry => &self.telemetry,
            PayloadKind::Attributes => &self.attributes,
            PayloadKind::RpcResponse => &self.rpc_response,
            PayloadKind::AttributesRequest => &self.asked.attributes,
            PayloadKind::RpcRequest => &self.asked.call,
            PayloadKind::Claim => &self.asked.claim,
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
            "deviceAttributesTopic": "a", "deviceAttributesSubscribeTopic": "told/+", "transportPayloadTypeConfiguration": payload});
        profile
    }

    #[test]
    fn profiles_choose_topics_and_format() {
        let json = Transport::of(&profile(json!({"transportPayloadType": "JSON"}))).unwrap();
        assert_eq!(json.payload_kind("sensors/7/t"), Some(PayloadKind::Telemetry));
        assert_eq!(json.payload_kind("a"), Some(PayloadKind::Attributes));
        assert_eq!(json.payload_kind("v1/devices/me/telemetry"), None);
        assert_eq!(
            json.to_json(PayloadKind::Telemetry, b"{}").unwrap(),
            Cow::Borrowed(b"{}")
        );
        let broken = profile(json!({"transportPayloadType": "PROTOBUF", "deviceTelemetryProtoSchema": "message {"}));
        assert!(
            Transport::of(&broken)
                .unwrap_err()
                .starts_with("deviceTelemetryProtoSchema: ")
        );
        assert!(
            Transport::of(&DeviceProfile::default())
                .unwrap()
                .payload_kind("a")
                .is_none()
        );
        for filter in ["told/+", "told/7"] {
            assert!(json.is_for_attributes(filter), "{filter}");
        }
        assert!(!json.is_for_attributes("told/7/8") && !json.is_for_attributes("#"));
    }

    #[test]
    fn what_is_told_on_the_long_topics_may_be_json() {
        let transport = |accepts: bool, tells: bool| {
            let payload = json!({"transportPayloadType": "PROTOBUF", "enableCompatibilityWithJsonPayloadFormat": accepts,
                "useJsonPayloadFormatForDefaultDownlinkTopics": tells});
            Transport::of(&profile(payload)).unwrap()
        };
        let forms = [
            Form::Long,
            Form::Short(Format::Profile),
            Form::Short(Format::Protobuf),
            Form::Short(Format::Json),
        ];
        let told = |transport: &Transport| forms.map(|form| transport.tells_protobuf(form));
        assert_eq!(told(&transport(true, true)), [false, true, true, false]);
        for (accepts, tells) in [(false, false), (true, false), (false, true)] {
            assert_eq!(told(&transport(accepts, tells)), [true, true, true, false]);
        }
        assert_eq!(told(&Transport::default()), [false; 4]);
    }

    #[test]
    fn default_schemas_decode_and_json_may_be_accepted() {
        // temperature 22.5, innerObject { key2: true, key4: 7 }.
        let payload = [0x09, 0, 0, 0, 0, 0, 0x80, 0x36, 0x40, 0x1a, 4, 0x10, 1, 0x20, 7];
        let strict = Transport::of(&profile(json!({"transportPayloadType": "PROTOBUF"}))).unwrap();
        let found = strict.to_json(PayloadKind::Telemetry, &payload).unwrap();
        assert_eq!(
            std::str::from_utf8(&found).unwrap(),
            r#"{"temperature":22.5,"innerObject":{"key2":true,"key4":7}}"#
        );
        assert!(strict.to_json(PayloadKind::Telemetry, b"{\"a\":1}").is_err());
        let lenient = json!({"transportPayloadType": "PROTOBUF", "enableCompatibilityWithJsonPayloadFormat": true});
        let lenient = Transport::of(&profile(lenient)).unwrap();
        assert_eq!(
            lenient.to_json(PayloadKind::Telemetry, b"{\"a\":1}").unwrap(),
            Cow::Borrowed(b"{\"a\":1}")
        );
    }
}
