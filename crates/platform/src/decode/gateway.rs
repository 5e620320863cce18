//! Decodes messages of gateways. Such a message contains the names of the devices that it belongs to.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::PayloadDecodeError;
use super::request::{Claim, check_keys};
use super::telemetry::Telemetry;
use super::values::{DecodeLimits, KeyValue, Members, object, push_values};

/// The part of a message for one device.
#[derive(Debug)]
pub struct GatewayPart<'a> {
    pub device: Cow<'a, str>,
    raw: &'a RawValue,
}

/// Decodes `{"device name": …, …}` of telemetry, attributes and claims.
pub fn gateway_parts(payload: &[u8]) -> Result<Vec<GatewayPart<'_>>, PayloadDecodeError> {
    let members: Members<'_> =
        serde_json::from_slice(payload).map_err(|error| match PayloadDecodeError::from(error) {
            PayloadDecodeError::Form { .. } => PayloadDecodeError::form("an object with a member for each device"),
            other => other,
        })?;
    let parts = members.all()?.into_iter();
    Ok(parts.map(|(device, raw)| GatewayPart { device, raw }).collect())
}

impl<'a> GatewayPart<'a> {
    pub fn telemetry(&self, now_ms: i64, limits: &DecodeLimits) -> Result<Telemetry<'a>, PayloadDecodeError> {
        Telemetry::decode_gateway(self.raw, now_ms, limits)
    }

    pub fn attributes(&self, limits: &DecodeLimits) -> Result<Vec<KeyValue<'a>>, PayloadDecodeError> {
        let members: Members<'a> = serde_json::from_str(self.raw.get())
            .map_err(|_| PayloadDecodeError::form("an object of attributes for each device"))?;
        let mut values = Vec::new();
        push_values(&mut values, members, limits)?;
        Ok(values)
    }

    pub fn claim(&self) -> Result<Claim, PayloadDecodeError> {
        Claim::decode(self.raw.get().as_bytes())
    }
}

/// `{"device":"A","type":"thermometer"}`, for connect and disconnect messages.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct GatewayConnect {
    pub device: String,
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
}

impl GatewayConnect {
    pub fn decode(payload: &[u8]) -> Result<GatewayConnect, PayloadDecodeError> {
        let expected = "an object with the name of a device";
        let connect: GatewayConnect = object(payload, expected)?;
        match connect.device.is_empty() {
            true => Err(PayloadDecodeError::form(expected)),
            false => Ok(connect),
        }
    }
}

/// `{"id":1,"device":"A","client":true,"key":"k"}`, or with `keys`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayAttributesRequest {
    pub id: i64,
    pub device: String,
    pub is_client_scope: bool,
    pub keys: Vec<String>,
    /// Requested with `keys`: the response has `values` even for a single key.
    pub is_list: bool,
}

impl GatewayAttributesRequest {
    pub fn decode(payload: &[u8]) -> Result<GatewayAttributesRequest, PayloadDecodeError> {
        #[derive(Deserialize)]
        struct RawAttributesRequest {
            id: i64,
            device: String,
            client: bool,
            key: Option<String>,
            keys: Option<Vec<String>>,
        }
        let raw: RawAttributesRequest = object(payload, "an object with id, device, client, and key or keys")?;
        let is_list = raw.key.is_none();
        let keys = raw.key.map(|key| vec![key]).or(raw.keys);
        check_keys(keys.as_ref().map_or(0, Vec::len))?;
        Ok(GatewayAttributesRequest {
            id: raw.id,
            device: raw.device,
            is_client_scope: raw.client,
            keys: keys.ok_or_else(|| PayloadDecodeError::form("key or keys"))?,
            is_list,
        })
    }
}

/// `{"device":"A","id":1,"data":…}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayRpcResponse {
    pub device: String,
    pub id: i64,
    /// JSON as received.
    pub data: String,
}

impl GatewayRpcResponse {
    pub fn decode(payload: &[u8]) -> Result<GatewayRpcResponse, PayloadDecodeError> {
        #[derive(Deserialize)]
        struct RawRpcResponse<'a> {
            device: String,
            id: i64,
            #[serde(borrow)]
            data: &'a RawValue,
        }
        let raw: RawRpcResponse<'_> = object(payload, "an object with device, id and data")?;
        Ok(GatewayRpcResponse {
            device: raw.device,
            id: raw.id,
            data: raw.data.get().to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use timeseries::PointValue;

    use super::*;

    #[test]
    fn telemetry_is_decoded_per_device() {
        let payload = br#"{"A":[{"ts":1,"values":{"t":42}},{"t":43,"metadata":{"connector":"c"}}],"B":[]}"#;
        let parts = gateway_parts(payload).unwrap();
        assert_eq!(parts.iter().map(|part| &*part.device).collect::<Vec<_>>(), ["A", "B"]);
        let telemetry = parts[0].telemetry(9, &DecodeLimits::default()).unwrap();
        let found: Vec<_> = telemetry
            .groups()
            .map(|(ts, values)| (ts, values[0].value.clone()))
            .collect();
        assert_eq!(found, [(1, PointValue::Long(42)), (9, PointValue::Long(43))]);
        assert_eq!(
            parts[1].telemetry(9, &DecodeLimits::default()).unwrap().point_count(),
            0
        );
        let bare = gateway_parts(br#"{"A":{"t":1}}"#).unwrap();
        assert!(bare[0].telemetry(9, &DecodeLimits::default()).is_err());
    }

    #[test]
    fn other_gateway_messages_are_decoded() {
        assert_eq!(
            GatewayConnect::decode(br#"{"device":"A","type":"t"}"#)
                .unwrap()
                .kind
                .as_deref(),
            Some("t")
        );
        assert!(GatewayConnect::decode(br#"{"device":""}"#).is_err());
        assert!(GatewayConnect::decode(br#"["A","t"]"#).is_err());
        assert!(GatewayAttributesRequest::decode(br#"[1,"A",true,"k",null]"#).is_err());
        assert!(GatewayRpcResponse::decode(br#"["A",7,{}]"#).is_err());
        let one = GatewayAttributesRequest::decode(br#"{"id":1,"device":"A","client":true,"key":"k"}"#).unwrap();
        assert_eq!((one.keys, one.is_list), (vec!["k".to_owned()], false));
        let rpc = GatewayRpcResponse::decode(br#"{"device":"A","id":7,"data":{"ok":true}}"#).unwrap();
        assert_eq!((rpc.id, rpc.data.as_str()), (7, r#"{"ok":true}"#));
        let claims = gateway_parts(br#"{"A":{"secretKey":"s","durationMs":1}}"#).unwrap();
        assert_eq!(claims[0].claim().unwrap().duration_ms, 1);
    }
}
