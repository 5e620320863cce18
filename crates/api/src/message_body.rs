//! Messages as JSON: payloads as text or base64, and the MQTT 5 properties of a message by name.

use std::collections::BTreeMap;

use base64ct::{Base64, Encoding};
use mqtt::{Properties, Property, PropertyWriter};
use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use web::problem::HttpProblem;

/// Encoding of a payload in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PayloadEncoding {
    /// Plain text, for UTF-8 payloads.
    #[default]
    Plain,
    Base64,
}

impl PayloadEncoding {
    /// Returns plain text for a UTF-8 payload, otherwise base64.
    pub fn encode(payload: Vec<u8>) -> (String, PayloadEncoding) {
        match String::from_utf8(payload) {
            Ok(text) => (text, PayloadEncoding::Plain),
            Err(error) => (Base64::encode_string(error.as_bytes()), PayloadEncoding::Base64),
        }
    }

    pub fn decode(self, text: String) -> Result<Vec<u8>, HttpProblem> {
        match self {
            PayloadEncoding::Plain => Ok(text.into_bytes()),
            PayloadEncoding::Base64 => Base64::decode_vec(&text)
                .map_err(|_| HttpProblem::invalid("payload", "not base64").expected("base64 with padding")),
        }
    }
}

/// MQTT 5 properties of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MessageProperties {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_topic: Option<String>,
    /// Base64 with padding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_data: Option<String>,
    /// Seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_expiry_interval: Option<u32>,
    /// 1: the payload is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1))]
    pub payload_format_indicator: Option<u8>,
    /// A request can have an object with a text per name instead: `{"room": "5"}`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "user_properties")]
    pub user_properties: Vec<UserProperty>,
}

/// User properties in a request.
#[derive(Deserialize)]
#[serde(untagged)]
enum UserProperties {
    List(Vec<UserProperty>),
    ByName(BTreeMap<String, String>),
}

fn user_properties<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<UserProperty>, D::Error> {
    const EXPECTED: &str = "expected a list of objects with name and value, or an object with a text per name";
    let found = UserProperties::deserialize(deserializer).map_err(|_| D::Error::custom(EXPECTED))?;
    Ok(match found {
        UserProperties::List(list) => list,
        UserProperties::ByName(texts) => {
            let property = |(name, value)| UserProperty { name, value };
            texts.into_iter().map(property).collect()
        }
    })
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserProperty {
    pub name: String,
    pub value: String,
}

/// A string of MQTT has at most this many bytes and does not contain U+0000 [MQTT-1.5.4-2].
const STRING_BYTES_MAX: usize = 65_535;

impl MessageProperties {
    /// Without the message expiry interval, which the broker stores as a number.
    pub fn from_wire(bytes: &[u8], expires_in_s: Option<u32>) -> MessageProperties {
        let properties = Properties::from_validated(bytes);
        let owned = |text: &str| text.to_owned();
        MessageProperties {
            content_type: properties.content_type().map(owned),
            response_topic: properties.response_topic().map(owned),
            correlation_data: properties.correlation_data().map(Base64::encode_string),
            message_expiry_interval: expires_in_s,
            payload_format_indicator: properties.payload_format_indicator(),
            user_properties: properties
                .user_properties()
                .map(|(name, value)| UserProperty {
                    name: name.to_owned(),
                    value: value.to_owned(),
                })
                .collect(),
        }
    }

    /// Returns the forwarded properties as wire bytes.
    pub fn to_wire(&self) -> Result<Vec<u8>, HttpProblem> {
        let correlation_data = self.correlation_data()?;
        self.check()?;
        let mut bytes = Vec::new();
        let mut writer = PropertyWriter::new(&mut bytes);
        let properties = [
            self.payload_format_indicator.map(Property::PayloadFormatIndicator),
            self.content_type.as_deref().map(Property::ContentType),
            self.response_topic.as_deref().map(Property::ResponseTopic),
            correlation_data.as_deref().map(Property::CorrelationData),
        ];
        for property in properties.into_iter().flatten() {
            writer.put(property);
        }
        for property in &self.user_properties {
            writer.put(Property::UserProperty(&property.name, &property.value));
        }
        Ok(bytes)
    }

    fn correlation_data(&self) -> Result<Option<Vec<u8>>, HttpProblem> {
        let Some(text) = &self.correlation_data else {
            return Ok(None);
        };
        let bytes = Base64::decode_vec(text)
            .ok()
            .filter(|bytes| bytes.len() <= STRING_BYTES_MAX);
        let problem = || HttpProblem::invalid("properties.correlation_data", "not base64 of at most 65535 bytes");
        bytes.map(Some).ok_or_else(problem)
    }

    fn check(&self) -> Result<(), HttpProblem> {
        check_string("properties.content_type", self.content_type.as_deref())?;
        if let Some(topic) = &self.response_topic {
            // [MQTT-3.3.2-14]
            mqtt::validate_topic_name(topic).map_err(|error| {
                HttpProblem::invalid("properties.response_topic", error.to_string()).expected("a topic name")
            })?;
        }
        if self.payload_format_indicator.is_some_and(|indicator| indicator > 1) {
            return Err(HttpProblem::invalid("properties.payload_format_indicator", "out of range").expected("0 or 1"));
        }
        for (index, property) in self.user_properties.iter().enumerate() {
            check_string(
                &format!("properties.user_properties[{index}].name"),
                Some(&property.name),
            )?;
            check_string(
                &format!("properties.user_properties[{index}].value"),
                Some(&property.value),
            )?;
        }
        Ok(())
    }
}

fn check_string(field: &str, text: Option<&str>) -> Result<(), HttpProblem> {
    match text {
        Some(text) if text.len() > STRING_BYTES_MAX => Err(HttpProblem::invalid(field, "longer than 65535 bytes")),
        Some(text) if text.contains('\0') => Err(HttpProblem::invalid(field, "contains U+0000")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_round_trip_through_wire_bytes() {
        let properties = MessageProperties {
            content_type: Some("text/plain".into()),
            response_topic: Some("a/b".into()),
            correlation_data: Some("AAEC".into()),
            message_expiry_interval: Some(7),
            payload_format_indicator: Some(1),
            user_properties: vec![
                UserProperty {
                    name: "k".into(),
                    value: "v".into()
                };
                2
            ],
        };
        let wire = properties.to_wire().unwrap();
        assert!(Properties::parse(&wire, mqtt::PropertyContext::Publish).is_ok());
        assert_eq!(MessageProperties::from_wire(&wire, Some(7)), properties);
        assert_eq!(MessageProperties::default().to_wire().unwrap(), b"");
    }

    #[test]
    fn invalid_properties_are_rejected_with_their_field() {
        let bad = |change: fn(&mut MessageProperties)| {
            let mut properties = MessageProperties::default();
            change(&mut properties);
            properties.to_wire().unwrap_err().field.unwrap()
        };
        assert_eq!(
            bad(|p| p.correlation_data = Some("?".into())),
            "properties.correlation_data"
        );
        assert_eq!(
            bad(|p| p.response_topic = Some("a/#".into())),
            "properties.response_topic"
        );
        assert_eq!(bad(|p| p.content_type = Some("a\0".into())), "properties.content_type");
        assert_eq!(
            bad(|p| p.payload_format_indicator = Some(2)),
            "properties.payload_format_indicator"
        );
        let long = |p: &mut MessageProperties| {
            p.user_properties = vec![UserProperty {
                name: "k".into(),
                value: "v".repeat(65_536),
            }];
        };
        assert_eq!(bad(long), "properties.user_properties[0].value");
    }

    #[test]
    fn utf8_payloads_are_plain_text() {
        assert_eq!(
            PayloadEncoding::encode(b"21.5".to_vec()),
            ("21.5".into(), PayloadEncoding::Plain)
        );
        assert_eq!(
            PayloadEncoding::encode(vec![0xff]),
            ("/w==".into(), PayloadEncoding::Base64)
        );
        assert_eq!(PayloadEncoding::Base64.decode("/w==".into()).unwrap(), [0xff]);
        assert!(PayloadEncoding::Base64.decode("/w".into()).is_err());
    }
}
