//! Provisioning of devices that use Protobuf, with ThingsBoard's messages: the profile is unknown before it is done.
//!
//! ```text
//! ProvisionDeviceRequestMsg   1 device name | 2 credentials type | 3 { 1 key | 2 secret } | 4 credentials | 5 gateway
//! credentials                 1 { 1 token } | 2 { 1 certificate } | 3 { 1 client id | 2 user name | 3 password }
//! ProvisionDeviceResponseMsg  1 status | 2 credentials type | 3 credentials
//! ```

use serde_json::{Value as Json, json};

use super::schema::Schema;
use crate::decode::answer::provisioned_credentials;
use crate::decode::error::PayloadDecodeError;
use crate::decode::request::{Provision, Provisioned};

const CREDENTIALS_TYPE: &str =
    "enum CredentialsType { ACCESS_TOKEN = 0; X509_CERTIFICATE = 1; MQTT_BASIC = 2; LWM2M_CREDENTIALS = 3; }";
const REQUEST: &str = "message Token { string token = 1; } message Certificate { string hash = 1; }
    message Basic { optional string clientId = 1; optional string userName = 2; optional string password = 3; }
    message Credentials { Token token = 1; Certificate certificate = 2; Basic basic = 3; }
    message Key { string key = 1; string secret = 2; }
    message Request { string deviceName = 1; CredentialsType type = 2; Key key = 3; Credentials credentials = 4; bool gateway = 5; }";
const RESPONSE: &str = "enum Status { UNKNOWN = 0; SUCCESS = 1; NOT_FOUND = 2; FAILURE = 3; }
    message Response { Status status = 1; CredentialsType type = 2; string value = 3; }";

fn schema(text: &str) -> Schema {
    Schema::parse(&format!("{CREDENTIALS_TYPE} {text}")).expect("the schema is a constant of this file")
}

pub fn request(payload: &[u8]) -> Result<Provision, PayloadDecodeError> {
    let decoded: Json = serde_json::from_str(&schema(REQUEST).to_json(payload)?)?;
    let given = &decoded["credentials"];
    let json = json!({
        "deviceName": decoded["deviceName"].as_str().unwrap_or_default(),
        "provisionDeviceKey": decoded["key"]["key"].as_str().unwrap_or_default(),
        "provisionDeviceSecret": decoded["key"]["secret"].as_str().unwrap_or_default(),
        "credentialsType": decoded["type"].as_str().unwrap_or("ACCESS_TOKEN"),
        "token": given["token"]["token"],
        "hash": given["certificate"]["hash"],
        "clientId": given["basic"]["clientId"],
        "username": given["basic"]["userName"],
        "password": given["basic"]["password"],
        "gateway": decoded["gateway"].as_bool().unwrap_or(false),
    });
    Ok(serde_json::from_value(json)?)
}

pub fn answer(provisioned: &Provisioned) -> Vec<u8> {
    let json = match provisioned {
        Provisioned::Success(credentials) => json!({
            "status": "SUCCESS",
            "type": credentials.credentials_type.name(),
            "value": provisioned_credentials(credentials),
        }),
        Provisioned::NotFound => json!({"status": "NOT_FOUND"}),
        Provisioned::Failure => json!({"status": "FAILURE"}),
    };
    schema(RESPONSE).encode(&json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{CredentialsType, DeviceCredentials};

    #[test]
    fn requests_match_their_json_form() {
        let wire = b"\x0a\x01D\x10\x02\x1a\x06\x0a\x01k\x12\x01s\x22\x0b\x1a\x09\x0a\x01c\x12\x01u\x1a\x01p\x28\x01";
        let decoded = request(wire).unwrap();
        let in_json = Provision::decode(
            br#"{"deviceName":"D","provisionDeviceKey":"k","provisionDeviceSecret":"s","credentialsType":"MQTT_BASIC","clientId":"c","username":"u","password":"p","gateway":true}"#,
        );
        assert_eq!(Ok(decoded), in_json);
        let least = request(b"\x1a\x06\x0a\x01k\x12\x01s").unwrap();
        assert_eq!((least.key.as_str(), least.secret.as_str()), ("k", "s"));
        assert_eq!(
            (least.credentials_type, least.token),
            (CredentialsType::AccessToken, None)
        );
        assert!(request(b"{\"deviceName\":").is_err());
    }

    #[test]
    fn responses_have_status_and_credentials() {
        let credentials = DeviceCredentials {
            credentials_type: CredentialsType::X509Certificate,
            credentials_value: Some("C".to_owned()),
            ..DeviceCredentials::default()
        };
        assert_eq!(answer(&Provisioned::Success(credentials)), b"\x08\x01\x10\x01\x1a\x01C");
        assert_eq!(answer(&Provisioned::NotFound), b"\x08\x02");
        assert_eq!(answer(&Provisioned::Failure), b"\x08\x03");
    }
}
