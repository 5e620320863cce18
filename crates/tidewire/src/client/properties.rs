//! MQTT 5 properties as typed: `-D publish content-type text/plain`.

use mqtt::{Properties, PropertiesError, Property, PropertyContext, PropertyWriter};

/// Encoded properties per packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PropertySet {
    pub connect: Vec<u8>,
    pub publish: Vec<u8>,
    pub subscribe: Vec<u8>,
    pub unsubscribe: Vec<u8>,
    pub disconnect: Vec<u8>,
    pub will: Vec<u8>,
}

impl PropertySet {
    /// Adds one `-D`: packet, property name, and one value or two.
    pub fn add(&mut self, words: &[String]) -> Result<(), String> {
        let [packet, name, values @ ..] = words else {
            return Err("-D takes a packet, a property and a value".into());
        };
        let (context, bytes) = self.part(packet)?;
        let mut one = Vec::new();
        encode(name, values, &mut one)?;
        if Properties::parse(&one, context).is_err() {
            return Err(format!(
                "-D: {name} is not a property of {packet}, or cannot have that value"
            ));
        }
        bytes.extend(one);
        Properties::parse(bytes, context)
            .map(drop)
            .map_err(|error| match error {
                PropertiesError::Malformed => format!("-D: {name} cannot have that value"),
                PropertiesError::Protocol => format!("-D: {name} is given twice"),
            })
    }

    fn part(&mut self, packet: &str) -> Result<(PropertyContext, &mut Vec<u8>), String> {
        Ok(match packet.to_ascii_lowercase().as_str() {
            "connect" => (PropertyContext::Connect, &mut self.connect),
            "publish" => (PropertyContext::Publish, &mut self.publish),
            "subscribe" => (PropertyContext::Subscribe, &mut self.subscribe),
            "unsubscribe" => (PropertyContext::Unsubscribe, &mut self.unsubscribe),
            "disconnect" => (PropertyContext::Disconnect, &mut self.disconnect),
            "will" => (PropertyContext::Will, &mut self.will),
            _ => {
                let packets = "connect, publish, subscribe, unsubscribe, disconnect and will";
                return Err(format!("-D: `{packet}` has no properties to set; there are {packets}"));
            }
        })
    }
}

/// Properties that were checked when they were added.
pub fn checked(bytes: &[u8], context: PropertyContext) -> Properties<'_> {
    Properties::parse(bytes, context).expect("properties are checked when they are added")
}

fn encode(name: &str, values: &[String], out: &mut Vec<u8>) -> Result<(), String> {
    let name = name.to_ascii_lowercase();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let property = match (name.as_str(), values.as_slice()) {
        ("user-property", [key, value]) => Property::UserProperty(key, value),
        ("user-property", _) => return Err("-D: user-property takes a name and a value".into()),
        (_, [value]) => single(&name, value)?,
        _ => return Err(format!("-D: {name} takes one value")),
    };
    PropertyWriter::new(out).put(property);
    Ok(())
}

fn single<'a>(name: &str, value: &'a str) -> Result<Property<'a>, String> {
    Ok(match name {
        "authentication-data" => Property::AuthenticationData(value.as_bytes()),
        "authentication-method" => Property::AuthenticationMethod(value),
        "content-type" => Property::ContentType(value),
        "correlation-data" => Property::CorrelationData(value.as_bytes()),
        "maximum-packet-size" => Property::MaximumPacketSize(number(name, value)?),
        "message-expiry-interval" => Property::MessageExpiryInterval(number(name, value)?),
        "payload-format-indicator" => Property::PayloadFormatIndicator(number(name, value)?),
        "reason-string" => Property::ReasonString(value),
        "receive-maximum" => Property::ReceiveMaximum(number(name, value)?),
        "request-problem-information" => Property::RequestProblemInformation(boolean(name, value)?),
        "request-response-information" => Property::RequestResponseInformation(boolean(name, value)?),
        "response-topic" => Property::ResponseTopic(value),
        "session-expiry-interval" => Property::SessionExpiryInterval(number(name, value)?),
        "subscription-identifier" => Property::SubscriptionIdentifier(number(name, value)?),
        "topic-alias" => Property::TopicAlias(number(name, value)?),
        "topic-alias-maximum" => Property::TopicAliasMaximum(number(name, value)?),
        "will-delay-interval" => Property::WillDelayInterval(number(name, value)?),
        _ => return Err(format!("-D: there is no property `{name}`")),
    })
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("-D: {name} cannot be `{value}`"))
}

fn boolean(name: &str, value: &str) -> Result<bool, String> {
    number::<u8>(name, value).and_then(|bit| match bit {
        0 | 1 => Ok(bit == 1),
        _ => Err(format!("-D: {name} cannot be `{value}`")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(lines: &[&str]) -> Result<PropertySet, String> {
        let mut set = PropertySet::default();
        for line in lines {
            set.add(&line.split(' ').map(Into::into).collect::<Vec<String>>())?;
        }
        Ok(set)
    }

    #[test]
    fn properties_are_encoded_in_the_order_typed() {
        let set = add(&[
            "publish content-type a",
            "PUBLISH user-property k v",
            "publish user-property k w",
        ])
        .unwrap();
        let properties: Vec<Property<'_>> = checked(&set.publish, PropertyContext::Publish).iter().collect();
        let expected = [
            Property::ContentType("a"),
            Property::UserProperty("k", "v"),
            Property::UserProperty("k", "w"),
        ];
        assert_eq!(properties, expected);
        assert!(set.connect.is_empty());
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
        for (lines, error) in [
            (
                &["publish will-delay-interval 3"][..],
                "-D: will-delay-interval is not a property of publish, or cannot have that value",
            ),
            (
                &["publish content-type a", "publish content-type b"],
                "-D: content-type is given twice",
            ),
            (&["publish foo 3"], "-D: there is no property `foo`"),
            (&["publish content-type"], "-D: content-type takes one value"),
            (
                &["publish user-property a"],
                "-D: user-property takes a name and a value",
            ),
            (
                &["connect receive-maximum 70000"],
                "-D: receive-maximum cannot be `70000`",
            ),
            (
                &["connect receive-maximum 0"],
                "-D: receive-maximum is not a property of connect, or cannot have that value",
            ),
            (
                &["connect request-problem-information 2"],
                "-D: request-problem-information cannot be `2`",
            ),
            (
                &["puback reason-string x"],
                "-D: `puback` has no properties to set; there are connect, publish, subscribe, unsubscribe, disconnect and will",
            ),
        ] {
            assert_eq!(add(lines), Err(error.to_string()));
        }
    }
}
