//! Gateways with Protobuf payloads. Converts their messages to the JSON of other gateways, and encodes messages to
//! them. The messages are ThingsBoard's, independent of the profile's schemas.
//!
//! ```text
//! ConnectMsg                   1 device name | 2 device type
//! DisconnectMsg                1 device name
//! GatewayTelemetryMsg          1 repeated { 1 device name
//!                                         | 3 { 1 repeated { 1 ts int64 | 2 repeated KeyValueProto } } }
//! GatewayAttributesMsg         1 repeated { 1 device name | 2 { 1 repeated KeyValueProto } }
//! GatewayClaimMsg              1 repeated { 1 device name | 2 { 1 secret key | 2 duration int64 } }
//! GatewayAttributesRequestMsg  1 id | 2 device name | 3 client scope | 4 repeated keys
//! GatewayRpcResponseMsg        1 device name | 2 id | 3 data
//! to gateways                  1 device name
//!                              2 AttributeUpdateNotificationMsg, GetAttributeResponseMsg or ToDeviceRpcRequestMsg
//! ToDeviceRpcRequestMsg        1 id | 2 method | 3 params
//! ```

use serde_json::{Map, Value as Json, json};

use super::encode::{attribute_response, attribute_update, put_bytes, put_number};
use super::schema::Schema;
use crate::decode::error::PayloadDecodeError;
use crate::model::Attribute;

/// Kind of a gateway message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatewayKind {
    Connect,
    Disconnect,
    Telemetry,
    Attributes,
    AttributesRequest,
    RpcResponse,
    Claim,
}

const CONNECT: &str = "message ConnectMsg { string device = 1; string type = 2; }";
const VALUE: &str = "message Value { string key = 1; int32 type = 2; bool is = 3; int64 long = 4; double double = 5; string text = 6; string json = 7; }";
const TELEMETRY: &str =
    "message Group { int64 ts = 1; repeated Value values = 2; } message Post { repeated Group groups = 1; }
    message Part { string device = 1; Post msg = 3; } message All { repeated Part parts = 1; }";
const ATTRIBUTES: &str = "message Post { repeated Value values = 1; }
    message Part { string device = 1; Post msg = 2; } message All { repeated Part parts = 1; }";
const CLAIMS: &str = "message Claim { string secretKey = 1; int64 durationMs = 2; }
    message Part { string device = 1; Claim msg = 2; } message All { repeated Part parts = 1; }";
const ATTRIBUTES_REQUEST: &str =
    "message Request { int32 id = 1; string device = 2; bool client = 3; repeated string keys = 4; }";
const RPC_RESPONSE: &str = "message Response { string device = 1; int32 id = 2; string data = 3; }";
const CALLED: &str = "message Call { int32 id = 1; } message Called { string device = 1; Call call = 2; }";

#[derive(Debug)]
pub struct GatewaySchemas {
    connect: Schema,
    telemetry: Schema,
    attributes: Schema,
    claims: Schema,
    attributes_request: Schema,
    rpc_response: Schema,
    rpc_request: Schema,
}

impl GatewaySchemas {
    pub fn parse() -> Result<GatewaySchemas, String> {
        Ok(GatewaySchemas {
            connect: Schema::parse(CONNECT)?,
            telemetry: Schema::parse(&format!("{VALUE} {TELEMETRY}"))?,
            attributes: Schema::parse(&format!("{VALUE} {ATTRIBUTES}"))?,
            claims: Schema::parse(CLAIMS)?,
            attributes_request: Schema::parse(ATTRIBUTES_REQUEST)?,
            rpc_response: Schema::parse(RPC_RESPONSE)?,
            rpc_request: Schema::parse(CALLED)?,
        })
    }

    pub fn to_json(&self, kind: GatewayKind, payload: &[u8]) -> Result<Vec<u8>, PayloadDecodeError> {
        let schema = match kind {
            GatewayKind::Connect | GatewayKind::Disconnect => &self.connect,
            GatewayKind::Telemetry => &self.telemetry,
            GatewayKind::Attributes => &self.attributes,
            GatewayKind::AttributesRequest => &self.attributes_request,
            GatewayKind::RpcResponse => &self.rpc_response,
            GatewayKind::Claim => &self.claims,
        };
        let mut message: Json = serde_json::from_str(&schema.to_json(payload)?)?;
        let json = match kind {
            GatewayKind::Connect | GatewayKind::Disconnect => {
                if message["type"] == "" {
                    message["type"] = Json::Null;
                }
                message
            }
            GatewayKind::Telemetry => of_each(&message, Json::Array(Vec::new()), add_groups),
            GatewayKind::Attributes => of_each(&message, json!({}), |all, msg| add_values(all, &msg["values"])),
            GatewayKind::Claim => of_each(&message, json!({}), |claim, msg| {
                *claim = json!({"secretKey": msg["secretKey"], "durationMs": long(&msg["durationMs"])});
            }),
            GatewayKind::AttributesRequest => message,
            GatewayKind::RpcResponse => {
                let data = json_or_text(&message["data"]);
                message["data"] = data;
                message
            }
        };
        Ok(json.to_string().into_bytes())
    }

    /// The device name and request number of an RPC request with this payload.
    pub fn rpc_target(&self, payload: &[u8]) -> Option<(String, i32)> {
        let called: Json = serde_json::from_str(&self.rpc_request.to_json(payload).ok()?).ok()?;
        let id = i32::try_from(called["call"]["id"].as_i64()?).ok()?;
        Some((called["device"].as_str()?.to_owned(), id))
    }
}

/// Builds an object with a member for each device.
fn of_each(message: &Json, empty: Json, mut add: impl FnMut(&mut Json, &Json)) -> Json {
    let mut devices = Map::new();
    for one in message["parts"].as_array().into_iter().flatten() {
        let name = one["device"].as_str().unwrap_or_default();
        add(devices.entry(name).or_insert_with(|| empty.clone()), &one["msg"]);
    }
    Json::Object(devices)
}

fn add_groups(all: &mut Json, msg: &Json) {
    let Some(all) = all.as_array_mut() else { return };
    for group in msg["groups"].as_array().into_iter().flatten() {
        let mut values = json!({});
        add_values(&mut values, &group["values"]);
        all.push(json!({"ts": long(&group["ts"]), "values": values}));
    }
}

fn add_values(all: &mut Json, values: &Json) {
    for value in values.as_array().into_iter().flatten() {
        let of_type = match value["type"].as_i64() {
            Some(0) => value["is"].clone(),
            Some(1) => long(&value["long"]),
            Some(2) => value["double"].clone(),
            Some(3) => value["text"].clone(),
            _ => json_or_text(&value["json"]),
        };
        all[value["key"].as_str().unwrap_or_default()] = of_type;
    }
}

/// 64-bit integers are strings in the JSON of Protobuf.
fn long(value: &Json) -> Json {
    let number = value.as_str().and_then(|text| text.parse::<i64>().ok());
    Json::from(number.unwrap_or_default())
}

fn json_or_text(value: &Json) -> Json {
    let text = value.as_str().unwrap_or_default();
    serde_json::from_str(text).unwrap_or_else(|_| Json::from(text))
}

fn of_device(device: &str, message: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, 1, device.as_bytes());
    put_bytes(&mut out, 2, message);
    out
}

pub fn gateway_attribute_update(device: &str, updated: &[Attribute], deleted: &[&str]) -> Vec<u8> {
    of_device(device, &attribute_update(updated, deleted))
}

pub fn gateway_attribute_response(device: &str, id: i32, client: &[Attribute], shared: &[Attribute]) -> Vec<u8> {
    of_device(device, &attribute_response(id, client, shared))
}

/// `params` is JSON.
pub fn gateway_rpc_request(device: &str, id: i32, method: &str, params: &str) -> Vec<u8> {
    let mut call = Vec::new();
    put_number(&mut call, 1, i64::from(id));
    put_bytes(&mut call, 2, method.as_bytes());
    put_bytes(&mut call, 3, params.as_bytes());
    of_device(device, &call)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, bytes.len() as u8][..], bytes].concat()
    }

    fn to_json(kind: GatewayKind, payload: &[u8]) -> String {
        let json = GatewaySchemas::parse().unwrap().to_json(kind, payload).unwrap();
        String::from_utf8(json).unwrap()
    }

    #[test]
    fn gateway_messages_become_gateway_json() {
        let values = [
            [text(1, b"b"), vec![0x18, 1]].concat(),
            [text(1, b"l"), vec![0x10, 1, 0x20, 42]].concat(),
            [text(1, b"d"), vec![0x10, 2, 0x29], 1.0_f64.to_le_bytes().to_vec()].concat(),
            [text(1, b"s"), vec![0x10, 3], text(6, b"x")].concat(),
            [text(1, b"j"), vec![0x10, 4], text(7, b"{\"k\":[1]}")].concat(),
        ];
        let group = |n: usize, values: &[Vec<u8>]| {
            let values: Vec<u8> = values.iter().flat_map(|value| text(2, value)).collect();
            text(1, &[vec![0x08, n as u8], values].concat())
        };
        let of = |device: &[u8], groups: &[u8]| text(1, &[text(1, device), text(3, groups)].concat());
        let telemetry = [
            of(b"A", &[group(5, &values[..2]), group(6, &values[2..])].concat()),
            of(b"B", &group(7, &values[1..2])),
            of(b"A", &group(8, &values[..1])),
        ]
        .concat();
        assert_eq!(
            to_json(GatewayKind::Telemetry, &telemetry),
            r#"{"A":[{"ts":5,"values":{"b":true,"l":42}},{"ts":6,"values":{"d":1.0,"j":{"k":[1]},"s":"x"}},{"ts":8,"values":{"b":true}}],"B":[{"ts":7,"values":{"l":42}}]}"#
        );
        let attributes: Vec<u8> = values[..2].iter().flat_map(|value| text(1, value)).collect();
        let attributes = text(1, &[text(1, b"A"), text(2, &attributes)].concat());
        assert_eq!(
            to_json(GatewayKind::Attributes, &attributes),
            r#"{"A":{"b":true,"l":42}}"#
        );
        let claim = text(
            1,
            &[text(1, b"A"), text(2, &[text(1, b"s"), vec![0x10, 9]].concat())].concat(),
        );
        assert_eq!(
            to_json(GatewayKind::Claim, &claim),
            r#"{"A":{"durationMs":9,"secretKey":"s"}}"#
        );
        assert_eq!(
            to_json(GatewayKind::Connect, &text(1, b"A")),
            r#"{"device":"A","type":null}"#
        );
        let request = [vec![0x08, 5], text(2, b"A"), vec![0x18, 1], text(4, b"k")].concat();
        assert_eq!(
            to_json(GatewayKind::AttributesRequest, &request),
            r#"{"client":true,"device":"A","id":5,"keys":["k"]}"#
        );
        let response = [text(1, b"A"), vec![0x10, 3], text(3, b"{\"is\":1}")].concat();
        assert_eq!(
            to_json(GatewayKind::RpcResponse, &response),
            r#"{"data":{"is":1},"device":"A","id":3}"#
        );
        let schemas = GatewaySchemas::parse().unwrap();
        assert!(schemas.to_json(GatewayKind::Telemetry, b"\xff\xff").is_err());
    }

    #[test]
    fn messages_to_gateways_name_the_device() {
        let call = gateway_rpc_request("A", 300, "run", "{}");
        let expected = [
            text(1, b"A"),
            text(2, &[vec![0x08, 0xac, 2], text(2, b"run"), text(3, b"{}")].concat()),
        ];
        assert_eq!(call, expected.concat());
        let schemas = GatewaySchemas::parse().unwrap();
        assert_eq!(schemas.rpc_target(&call), Some(("A".to_owned(), 300)));
        assert_eq!(
            gateway_attribute_update("A", &[], &["k"]),
            [text(1, b"A"), text(2, &text(2, b"k"))].concat()
        );
        assert_eq!(
            gateway_attribute_response("A", 7, &[], &[]),
            [text(1, b"A"), text(2, &[0x08, 7])].concat()
        );
    }
}
