//! Bodies of responses, with the members in ThingsBoard's order.

use timeseries::PointValue;

use crate::model::{Attribute, CredentialsType, DeviceCredentials};

/// Returns the text as a JSON string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns a value as JSON.
pub(crate) fn json_of(value: &PointValue) -> String {
    match value {
        PointValue::Bool(value) => value.to_string(),
        PointValue::Long(value) => value.to_string(),
        PointValue::Double(value) => double(*value),
        PointValue::String(text) => quoted(text),
        PointValue::Json(text) => text.to_string(),
    }
}

/// Numbers that JSON cannot represent become `null`.
fn double(value: f64) -> String {
    serde_json::Number::from_f64(value).map_or_else(|| "null".to_owned(), |number| number.to_string())
}

fn members(attributes: &[Attribute]) -> String {
    let members = attributes
        .iter()
        .map(|attribute| format!("{}:{}", quoted(&attribute.key), json_of(&attribute.value)));
    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
}

/// `{"client":{…},"shared":{…}}`, without empty scopes.
pub fn attribute_response(client: &[Attribute], shared: &[Attribute]) -> String {
    let scopes = [("client", client), ("shared", shared)];
    let parts = scopes.into_iter().filter(|(_, attributes)| !attributes.is_empty());
    let parts = parts.map(|(name, attributes)| format!("\"{name}\":{}", members(attributes)));
    format!("{{{}}}", parts.collect::<Vec<_>>().join(","))
}

/// `{"key":value}`, with deleted keys in `"deleted":[…]`.
pub fn attribute_update(updated: &[Attribute], deleted: &[&str]) -> String {
    let mut body = members(updated);
    if !deleted.is_empty() {
        body.pop();
        if !updated.is_empty() {
            body.push(',');
        }
        let keys: Vec<String> = deleted.iter().map(|key| quoted(key)).collect();
        body.push_str(&format!("\"deleted\":[{}]}}", keys.join(",")));
    }
    body
}

/// Uses `value` if the request had a single `key`, and `values` otherwise.
pub fn gateway_attribute_response(id: i64, device: &str, found: &[Attribute], is_list: bool) -> String {
    let head = format!("{{\"id\":{id},\"device\":{}", quoted(device));
    match found {
        [] => format!("{head}}}"),
        [one] if !is_list => format!("{head},\"value\":{}}}", json_of(&one.value)),
        all => format!("{head},\"values\":{}}}", members(all)),
    }
}

pub fn gateway_attribute_update(device: &str, updated: &[Attribute], deleted: &[&str]) -> String {
    format!(
        "{{\"device\":{},\"data\":{}}}",
        quoted(device),
        attribute_update(updated, deleted)
    )
}

pub fn gateway_disconnect(device: &str, reason: u32) -> String {
    format!("{{\"device\":{},\"reason\":{reason}}}", quoted(device))
}

/// `params` is JSON.
pub fn rpc_request(method: &str, params: &str) -> String {
    format!("{{\"method\":{},\"params\":{params}}}", quoted(method))
}

pub fn gateway_rpc_request(device: &str, id: i64, method: &str, params: &str) -> String {
    format!(
        "{{\"device\":{},\"data\":{{\"id\":{id},\"method\":{},\"params\":{params}}}}}",
        quoted(device),
        quoted(method)
    )
}

pub fn provision_not_found() -> String {
    r#"{"errorMsg":"Provision data was not found!","status":"NOT_FOUND"}"#.to_owned()
}

pub fn provision_failure() -> String {
    r#"{"errorMsg":"Failed to provision device!","status":"FAILURE"}"#.to_owned()
}

/// The credentials that the device connects with: a token, a certificate, or JSON.
pub(super) fn provisioned_credentials(credentials: &DeviceCredentials) -> Option<&str> {
    match credentials.credentials_type {
        CredentialsType::AccessToken => credentials.credentials_id.as_deref(),
        CredentialsType::X509Certificate | CredentialsType::MqttBasic => credentials.credentials_value.as_deref(),
        CredentialsType::Lwm2mCredentials => None,
    }
}

pub fn provision_success(credentials: &DeviceCredentials) -> String {
    let value = provisioned_credentials(credentials);
    let value = match credentials.credentials_type {
        CredentialsType::AccessToken | CredentialsType::X509Certificate => quoted(value.unwrap_or_default()),
        CredentialsType::MqttBasic => value.unwrap_or("{}").to_owned(),
        CredentialsType::Lwm2mCredentials => "null".to_owned(),
    };
    format!(
        "{{\"credentialsValue\":{value},\"credentialsType\":\"{}\",\"status\":\"SUCCESS\"}}",
        credentials.credentials_type.name()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(key: &str, value: PointValue) -> Attribute {
        Attribute {
            key: key.to_owned(),
            value,
            last_update_ms: 0,
        }
    }

    #[test]
    fn response_bodies_match_thingsboard() {
        let (a, b) = (
            attribute("a", PointValue::Long(1)),
            attribute("b\"", PointValue::String("x".into())),
        );
        let json = attribute("j", PointValue::Json(r#"{"k":[1]}"#.into()));
        let all = [a.clone(), b];
        let cases = [
            (
                attribute_response(&all, &[json]),
                r#"{"client":{"a":1,"b\"":"x"},"shared":{"j":{"k":[1]}}}"#,
            ),
            (attribute_response(&[], &[]), "{}"),
            (attribute_update(std::slice::from_ref(&a), &[]), r#"{"a":1}"#),
            (attribute_update(&[], &["x", "y"]), r#"{"deleted":["x","y"]}"#),
            (
                attribute_update(std::slice::from_ref(&a), &["x"]),
                r#"{"a":1,"deleted":["x"]}"#,
            ),
            (
                gateway_attribute_response(1, "A", std::slice::from_ref(&a), false),
                r#"{"id":1,"device":"A","value":1}"#,
            ),
            (
                gateway_attribute_response(1, "A", std::slice::from_ref(&a), true),
                r#"{"id":1,"device":"A","values":{"a":1}}"#,
            ),
            (
                gateway_attribute_response(1, "A", &[], true),
                r#"{"id":1,"device":"A"}"#,
            ),
            (
                gateway_attribute_update("A", &[a], &[]),
                r#"{"device":"A","data":{"a":1}}"#,
            ),
            (
                rpc_request("set", "{\"on\":true}"),
                r#"{"method":"set","params":{"on":true}}"#,
            ),
            (
                gateway_rpc_request("A", 3, "set", "1"),
                r#"{"device":"A","data":{"id":3,"method":"set","params":1}}"#,
            ),
            (gateway_disconnect("A", 2), r#"{"device":"A","reason":2}"#),
        ];
        for (body, expected) in cases {
            assert_eq!(body, expected);
        }
    }

    #[test]
    fn provisioning_responses_match_thingsboard() {
        let credentials = DeviceCredentials {
            credentials_id: Some("T".into()),
            ..DeviceCredentials::default()
        };
        assert_eq!(
            provision_success(&credentials),
            r#"{"credentialsValue":"T","credentialsType":"ACCESS_TOKEN","status":"SUCCESS"}"#
        );
    }
}
