//! Device requests: attributes, RPC, claiming, provisioning.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::PayloadDecodeError;
use super::values::{check_json, object};
use crate::model::{CredentialsType, DeviceCredentials};

/// `None` if the device did not request this scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttributesRequest {
    pub client_keys: Option<Vec<String>>,
    pub shared_keys: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeyLists {
    client_keys: Option<String>,
    shared_keys: Option<String>,
}

impl AttributesRequest {
    /// Decodes `{"clientKeys":"a,b","sharedKeys":"c"}`.
    pub fn decode(payload: &[u8]) -> Result<AttributesRequest, PayloadDecodeError> {
        let lists: KeyLists = object(payload, "clientKeys and sharedKeys as comma-separated strings")?;
        Ok(AttributesRequest {
            client_keys: lists.client_keys.as_deref().map(split_keys).transpose()?,
            shared_keys: lists.shared_keys.as_deref().map(split_keys).transpose()?,
        })
    }

    /// Parses the query parameters of an HTTP request.
    pub fn from_query(
        client_keys: Option<&str>,
        shared_keys: Option<&str>,
    ) -> Result<AttributesRequest, PayloadDecodeError> {
        let lists = |keys: Option<&str>| keys.filter(|keys| !keys.is_empty()).map(split_keys).transpose();
        Ok(AttributesRequest {
            client_keys: lists(client_keys)?,
            shared_keys: lists(shared_keys)?,
        })
    }

    /// A request without lists requests all attributes.
    pub fn requests_all(&self) -> bool {
        self.client_keys.is_none() && self.shared_keys.is_none()
    }
}

/// Most keys in a list. Each key needs a look-up.
const KEYS_MAX: usize = 1000;

fn split_keys(keys: &str) -> Result<Vec<String>, PayloadDecodeError> {
    check_keys(keys.bytes().filter(|byte| *byte == b',').count() + 1)?;
    let names = keys.split(',').map(str::trim).filter(|key| !key.is_empty());
    Ok(names.map(str::to_owned).collect())
}

pub(super) fn check_keys(count: usize) -> Result<(), PayloadDecodeError> {
    if count > KEYS_MAX {
        return Err(PayloadDecodeError::TooManyKeys { max: KEYS_MAX });
    }
    Ok(())
}

/// RPC request of the device to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcRequest {
    pub method: String,
    /// JSON as received.
    pub params: String,
}

impl RpcRequest {
    /// Decodes `{"method":"…","params":…}`.
    pub fn decode(payload: &[u8]) -> Result<RpcRequest, PayloadDecodeError> {
        #[derive(Deserialize)]
        struct RawRpcRequest<'a> {
            method: String,
            #[serde(borrow)]
            params: Option<&'a RawValue>,
        }
        let call: RawRpcRequest<'_> = object(payload, "an object with method and params")?;
        Ok(RpcRequest {
            method: call.method,
            params: call.params.map_or("null", RawValue::get).to_owned(),
        })
    }

    /// Checks that a response is valid JSON, which the HTTP endpoint requires. Over MQTT a response may be any text.
    pub fn check_response(payload: &[u8]) -> Result<(), PayloadDecodeError> {
        check_json(payload)
    }
}

/// Empty, or `{"secretKey":"…","durationMs":60000}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Claim {
    pub secret_key: String,
    pub duration_ms: i64,
}

impl Claim {
    pub fn decode(payload: &[u8]) -> Result<Claim, PayloadDecodeError> {
        if payload.is_empty() {
            return Ok(Claim::default());
        }
        object(payload, "an object with secretKey and durationMs")
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Provision {
    pub device_name: String,
    #[serde(rename = "provisionDeviceKey")]
    pub key: String,
    #[serde(rename = "provisionDeviceSecret")]
    pub secret: String,
    pub credentials_type: CredentialsType,
    pub token: Option<String>,
    pub client_id: Option<String>,
    #[serde(rename = "username")]
    pub user_name: Option<String>,
    pub password: Option<String>,
    #[serde(rename = "hash")]
    pub certificate: Option<String>,
    pub gateway: bool,
}

impl Provision {
    /// Returns the part of the request that could be guessed.
    pub fn key_and_secret(&self) -> Vec<u8> {
        [self.key.as_bytes(), &[0], self.secret.as_bytes()].concat()
    }

    pub fn decode(payload: &[u8]) -> Result<Provision, PayloadDecodeError> {
        object(
            payload,
            "an object with deviceName, provisionDeviceKey and provisionDeviceSecret",
        )
    }
}

/// The result of a provisioning request.
#[derive(Clone, Debug, PartialEq)]
pub enum Provisioned {
    Success(DeviceCredentials),
    NotFound,
    Failure,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribute_requests_are_decoded() {
        let keys = |text: &str| Some(text.split(',').map(str::to_owned).collect());
        let cases = [
            (
                r#"{"clientKeys":"a,,b,","sharedKeys":","}"#,
                keys("a,b"),
                Some(Vec::new()),
            ),
            (r#"{"clientKeys":"a,b","sharedKeys":"c"}"#, keys("a,b"), keys("c")),
            (r#"{"sharedKeys":"c"}"#, None, keys("c")),
            ("{}", None, None),
        ];
        for (payload, client_keys, shared_keys) in cases {
            let expected = AttributesRequest {
                client_keys,
                shared_keys,
            };
            assert_eq!(AttributesRequest::decode(payload.as_bytes()), Ok(expected));
        }
        assert!(AttributesRequest::decode(b"[]").is_err());
        assert!(AttributesRequest::from_query(None, Some("")).unwrap().requests_all());
        let many = format!(r#"{{"clientKeys":"{}"}}"#, ",".repeat(1000));
        let refused = AttributesRequest::decode(many.as_bytes());
        assert_eq!(refused, Err(PayloadDecodeError::TooManyKeys { max: 1000 }));
    }

    #[test]
    fn rpc_requests_are_decoded() {
        let call = RpcRequest::decode(br#"{"method":"getTime","params":{ "a": 1 }}"#).unwrap();
        assert_eq!(
            (call.method.as_str(), call.params.as_str()),
            ("getTime", r#"{ "a": 1 }"#)
        );
        assert_eq!(RpcRequest::decode(br#"{"method":"x"}"#).unwrap().params, "null");
        assert!(RpcRequest::decode(br#"{"params":{}}"#).is_err());
    }

    #[test]
    fn claims_are_decoded() {
        assert_eq!(Claim::decode(b""), Ok(Claim::default()));
        let claim = Claim::decode(br#"{"secretKey":"s","durationMs":60000}"#).unwrap();
        assert_eq!((claim.secret_key.as_str(), claim.duration_ms), ("s", 60_000));
        assert!(Claim::decode(b"[]x").is_err());
    }

    #[test]
    fn arrays_are_rejected_as_objects() {
        let form = |expected| Err::<(), _>(PayloadDecodeError::form(expected));
        let claim = "an object with secretKey and durationMs";
        for payload in ["[]", " [\"s\",1]", "[\"s\"]"] {
            assert_eq!(Claim::decode(payload.as_bytes()).map(drop), form(claim), "{payload}");
        }
        let call = RpcRequest::decode(br#"["getTime",{}]"#).map(drop);
        assert_eq!(call, form("an object with method and params"));
        assert!(AttributesRequest::decode(br#"["a","b"]"#).is_err());
        assert!(Provision::decode(br#"["D","k","s"]"#).is_err());
    }

    #[test]
    fn provisioning_requests_are_decoded() {
        let request = Provision::decode(
            br#"{"deviceName":"D","provisionDeviceKey":"k","provisionDeviceSecret":"s","credentialsType":"MQTT_BASIC","username":"u","password":"p","clientId":"c","gateway":true}"#,
        )
        .unwrap();
        assert_eq!(request.credentials_type, CredentialsType::MqttBasic);
        assert_eq!((request.user_name.as_deref(), request.gateway), (Some("u"), true));
    }
}
