//! Prints messages of `tidewire sub`: the payload, with `-v` also the topic, or a format (`-F`) with the escapes of
//! mosquitto_sub.
//!
//! Follows the manual of mosquitto_sub where version 2.0.11 differs from it: a width never cuts a payload, and the
//! time in JSON has one time zone.

use std::io::Write;
use std::num::NonZeroU16;

use jiff::Zoned;
use jiff::fmt::strtime;
use mqtt::{Properties, Property, Publish};

/// A format, taken apart once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageFormat(Vec<MessageFormatPart>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum MessageFormatPart {
    Literal(Vec<u8>),
    Field {
        code: char,
        layout: FieldLayout,
    },
    /// strftime with one specifier, `@Y`.
    Time(char),
    Nanoseconds,
}

/// Flags and width between `%` and the letter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FieldLayout {
    is_left: bool,
    is_zero_padded: bool,
    width: usize,
    precision: Option<usize>,
}

/// Longer fields are a typing error.
const WIDTH_MAX: usize = 10_000;
const FIELDS: &str = "ACDEFIjJlmPpqRrStUxX";
const FLAGGED: &str = "ACEFIlmpRStxX";
const ZERO_PADDED: &str = "AEFlmSXx";
const CUT: &str = "CIRt";

impl MessageFormat {
    pub fn parse(text: &str) -> Result<MessageFormat, String> {
        let mut pieces = Vec::new();
        let mut literal = String::new();
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            let piece = match c {
                '%' => parse_field(&mut chars)?,
                '@' => parse_time(chars.next())?,
                '\\' => MessageFormatPart::Literal(vec![parse_escape(chars.next())?]),
                other => {
                    literal.push(other);
                    continue;
                }
            };
            if !literal.is_empty() {
                pieces.push(MessageFormatPart::Literal(std::mem::take(&mut literal).into_bytes()));
            }
            pieces.push(piece);
        }
        pieces.push(MessageFormatPart::Literal(literal.into_bytes()));
        Ok(MessageFormat(pieces))
    }

    /// Appends the message. Appends nothing and fails if the format has `%J` and the payload is not JSON.
    pub fn print(&self, publish: &Publish<'_>, now: &Zoned, is_pretty: bool, out: &mut Vec<u8>) -> Result<(), String> {
        let start = out.len();
        for piece in &self.0 {
            match piece {
                MessageFormatPart::Literal(bytes) => out.extend_from_slice(bytes),
                MessageFormatPart::Time(specifier) => {
                    put(out, format_args!("{}", now.strftime(&format!("%{specifier}"))))
                }
                MessageFormatPart::Nanoseconds => put(out, format_args!("{:09}", now.subsec_nanosecond())),
                MessageFormatPart::Field { code: 'J', .. } if !is_json(publish.payload) => {
                    out.truncate(start);
                    return Err(format!("the payload on topic {} is not valid JSON", publish.topic));
                }
                MessageFormatPart::Field { code, layout } => print_field(*code, *layout, publish, now, is_pretty, out),
            }
        }
        Ok(())
    }
}

fn parse_field(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<MessageFormatPart, String> {
    let mut layout = FieldLayout::default();
    loop {
        match chars.peek() {
            Some('-') => layout.is_left = true,
            Some('0') => layout.is_zero_padded = true,
            _ => break,
        }
        chars.next();
    }
    layout.width = parse_number(chars)?.unwrap_or(0);
    if chars.next_if_eq(&'.').is_some() {
        layout.precision = Some(parse_number(chars)?.unwrap_or(0));
    }
    match chars.next() {
        Some('%') => Ok(MessageFormatPart::Literal(b"%".to_vec())),
        Some(code) if FIELDS.contains(code) => Ok(MessageFormatPart::Field {
            code,
            layout: layout.for_field(code),
        }),
        Some(code) => Err(format!("-F: `%{code}` is not a field")),
        None => Err("-F: the format ends in a field that is not whole".into()),
    }
}

fn parse_number(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<Option<usize>, String> {
    let mut number = None;
    while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
        chars.next();
        number = Some(number.unwrap_or(0) * 10 + digit as usize);
        if number > Some(WIDTH_MAX) {
            return Err(format!("-F: a width is {WIDTH_MAX} at most"));
        }
    }
    Ok(number)
}

fn parse_time(specifier: Option<char>) -> Result<MessageFormatPart, String> {
    match specifier {
        Some('@') => Ok(MessageFormatPart::Literal(b"@".to_vec())),
        Some('N') => Ok(MessageFormatPart::Nanoseconds),
        Some(specifier) => {
            let format = format!("%{specifier}");
            if strtime::format(&format, &Zoned::default()).is_ok() {
                Ok(MessageFormatPart::Time(specifier))
            } else {
                Err(format!("-F: `@{specifier}` is not a part of a time"))
            }
        }
        None => Err("-F: the format ends in an @ that is not whole".into()),
    }
}

fn parse_escape(escape: Option<char>) -> Result<u8, String> {
    Ok(match escape {
        Some('\\') => b'\\',
        Some('0') => 0,
        Some('a') => 0x07,
        Some('e') => 0x1B,
        Some('n') => b'\n',
        Some('r') => b'\r',
        Some('t') => b'\t',
        Some('v') => 0x0B,
        Some(other) => return Err(format!("-F: `\\{other}` is not an escape")),
        None => return Err("-F: the format ends in a backslash".into()),
    })
}

impl FieldLayout {
    /// Flags that mean nothing for a field are ignored, as documented.
    fn for_field(self, code: char) -> FieldLayout {
        if !FLAGGED.contains(code) {
            return FieldLayout::default();
        }
        FieldLayout {
            is_zero_padded: self.is_zero_padded && !self.is_left && ZERO_PADDED.contains(code),
            precision: self.precision.filter(|_| CUT.contains(code)),
            ..self
        }
    }

    /// Appends `text` cut and padded. Widths count bytes, as C does.
    fn put(self, text: &[u8], out: &mut Vec<u8>) {
        let text = &text[..self.precision.map_or(text.len(), |precision| precision.min(text.len()))];
        let padding = self.width.saturating_sub(text.len());
        if self.is_left {
            out.extend_from_slice(text);
            out.extend(std::iter::repeat_n(b' ', padding));
        } else {
            out.extend(std::iter::repeat_n(
                if self.is_zero_padded { b'0' } else { b' ' },
                padding,
            ));
            out.extend_from_slice(text);
        }
    }
}

fn print_field(
    code: char,
    layout: FieldLayout,
    publish: &Publish<'_>,
    now: &Zoned,
    is_pretty: bool,
    out: &mut Vec<u8>,
) {
    match code {
        'D' => out.extend_from_slice(publish.properties.correlation_data().unwrap_or_default()),
        'j' | 'J' => out.extend_from_slice(json(publish, now, code == 'j', is_pretty).as_bytes()),
        'p' => layout.put(publish.payload, out),
        _ => layout.put(field_text(code, publish, now).as_bytes(), out),
    }
}

fn field_text(code: char, publish: &Publish<'_>, now: &Zoned) -> String {
    let properties = publish.properties;
    let number = |number: Option<u32>| number.map(|number| number.to_string()).unwrap_or_default();
    match code {
        'A' => number(properties.topic_alias().map(u32::from)),
        'C' => properties.content_type().unwrap_or_default().into(),
        'E' => number(properties.message_expiry_interval()),
        'F' => number(properties.payload_format_indicator().map(u32::from)),
        'I' => now.strftime("%Y-%m-%dT%H:%M:%S%z").to_string(),
        'l' => publish.payload.len().to_string(),
        'm' => packet_id(publish).to_string(),
        'P' => {
            let pairs: Vec<String> = properties
                .user_properties()
                .map(|(name, value)| format!("{name}:{value}"))
                .collect();
            pairs.join(" ")
        }
        'q' => (publish.qos as u8).to_string(),
        'R' => properties.response_topic().unwrap_or_default().into(),
        'r' => u8::from(publish.retain).to_string(),
        'S' => number(properties.subscription_identifier()),
        't' => publish.topic.into(),
        'U' => format!("{}.{:09}", now.timestamp().as_second(), now.subsec_nanosecond()),
        'x' => publish.payload.iter().map(|byte| format!("{byte:02x}")).collect(),
        'X' => publish.payload.iter().map(|byte| format!("{byte:02X}")).collect(),
        _ => unreachable!("`FIELDS` lists them all"),
    }
}

fn packet_id(publish: &Publish<'_>) -> u16 {
    publish.packet_id.map_or(0, |id| NonZeroU16::get(id.0))
}

fn is_json(payload: &[u8]) -> bool {
    payload.is_empty() || serde_json::from_slice::<serde_json::Value>(payload).is_ok()
}

/// Written by hand because the payload of `%J` goes in as it came, numbers and all, and user properties may repeat.
fn json(publish: &Publish<'_>, now: &Zoned, is_payload_text: bool, is_pretty: bool) -> String {
    let mut members = vec![
        ("tst", quote(&now.strftime("%Y-%m-%dT%H:%M:%S.%6f%z").to_string())),
        ("topic", quote(publish.topic)),
        ("qos", (publish.qos as u8).to_string()),
        ("retain", u8::from(publish.retain).to_string()),
        ("payloadlen", publish.payload.len().to_string()),
    ];
    if publish.packet_id.is_some() {
        members.push(("mid", packet_id(publish).to_string()));
    }
    if !publish.properties.is_empty() {
        members.push(("properties", json_properties(publish.properties, is_pretty)));
    }
    let text = String::from_utf8_lossy(publish.payload);
    let payload = match (publish.payload.is_empty(), is_payload_text) {
        (true, _) => "null".into(),
        (false, true) => quote(&text),
        (false, false) => text.trim().into(),
    };
    members.push(("payload", payload));
    object(members, is_pretty, 0)
}

/// In the order received; user properties together where the first one stands.
fn json_properties(properties: Properties<'_>, is_pretty: bool) -> String {
    let mut members: Vec<(&str, String)> = Vec::new();
    for property in properties.iter() {
        let member = match property {
            Property::ContentType(text) => ("content-type", quote(text)),
            Property::CorrelationData(bytes) => ("correlation-data", quote(&String::from_utf8_lossy(bytes))),
            Property::MessageExpiryInterval(seconds) => ("message-expiry-interval", seconds.to_string()),
            Property::PayloadFormatIndicator(format) => ("payload-format-indicator", format.to_string()),
            Property::ResponseTopic(topic) => ("response-topic", quote(topic)),
            Property::SubscriptionIdentifier(identifier) => ("subscription-identifier", identifier.to_string()),
            Property::TopicAlias(alias) => ("topic-alias", alias.to_string()),
            Property::UserProperty(..) if members.iter().any(|(name, _)| *name == "user-properties") => continue,
            Property::UserProperty(..) => {
                let pairs = properties
                    .user_properties()
                    .map(|(name, value)| (name, quote(value)))
                    .collect();
                ("user-properties", object(pairs, is_pretty, 2))
            }
            _ => continue,
        };
        members.push(member);
    }
    object(members, is_pretty, 1)
}

fn object(members: Vec<(&str, String)>, is_pretty: bool, depth: usize) -> String {
    let (between, colon) = if is_pretty {
        (format!("\n{}", "\t".repeat(depth + 1)), ":\t")
    } else {
        (String::new(), ":")
    };
    let end = if is_pretty {
        format!("\n{}", "\t".repeat(depth))
    } else {
        String::new()
    };
    let members: Vec<String> = members
        .into_iter()
        .map(|(name, value)| format!("{between}{}{colon}{value}", quote(name)))
        .collect();
    format!("{{{}{end}}}", members.join(","))
}

fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to memory cannot fail");
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use jiff::tz::TimeZone;
    use mqtt::{PacketId, PropertyContext, PropertyWriter, QoS};

    use super::*;

    fn printed(format: &str) -> String {
        let mut bytes = Vec::new();
        let mut writer = PropertyWriter::new(&mut bytes);
        writer
            .put(Property::ContentType("text/plain"))
            .put(Property::UserProperty("k", "v"));
        writer
            .put(Property::SubscriptionIdentifier(7))
            .put(Property::UserProperty("k", "w"));
        let publish = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: true,
            topic: "a/bcdef",
            packet_id: PacketId::new(9),
            properties: Properties::parse(&bytes, PropertyContext::Publish).unwrap(),
            payload: "hé\"llo".as_bytes(),
        };
        let now = Timestamp::new(1_600_000_000, 12_345_678)
            .unwrap()
            .to_zoned(TimeZone::UTC);
        let mut out = Vec::new();
        MessageFormat::parse(format)
            .unwrap()
            .print(&publish, &now, false, &mut out)
            .unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn fields_are_printed_as_documented() {
        for (format, text) in [
            ("%t|%p|%q|%r|%m|%l", "a/bcdef|hé\"llo|1|1|9|7"),
            ("%C|%P|%S|%A|%E|%F|%R|%D", "text/plain|k:v k:w|7|||||"),
            (
                "%10l|%-10l|%010l|%-010l|",
                "         7|7         |0000000007|7         |",
            ),
            (
                "%20t|%-20t|%5.3t|%.3t|%020t",
                "             a/bcdef|a/bcdef             |  a/b|a/b|             a/bcdef",
            ),
            ("%3p|%10p|%-10p|", "hé\"llo|   hé\"llo|hé\"llo   |"),
            ("%x|%X|%16x", "68c3a9226c6c6f|68C3A9226C6C6F|  68c3a9226c6c6f"),
            ("%06E|%5C|%3.2C|%5q", "000000|text/plain| te|1"),
            ("%U|@s|@N|@@|%%", "1600000000.012345678|1600000000|012345678|@|%"),
            ("@Y-@m-@dT@H:@M:@S@z", "2020-09-13T12:26:40+0000"),
            ("%I", "2020-09-13T12:26:40+0000"),
            ("a\\tb\\n\\\\\\e[1m\\a", "a\tb\n\\\x1b[1m\x07"),
        ] {
            assert_eq!(printed(format), text, "{format}");
        }
    }

    #[test]
    fn json_has_the_members_of_mosquitto_sub() {
        let text = printed("%j");
        let rest = text.split_once("\"topic\"").unwrap().1;
        let properties = "{\"content-type\":\"text/plain\",\"user-properties\":{\"k\":\"v\",\"k\":\"w\"},\"subscription-identifier\":7}";
        let expected = format!(
            ":\"a/bcdef\",\"qos\":1,\"retain\":1,\"payloadlen\":7,\"mid\":9,\"properties\":{properties},\"payload\":\"hé\\\"llo\"}}"
        );
        assert_eq!(rest, expected);
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
    }

    #[test]
    fn wrong_formats_are_refused() {
        for (format, error) in [
            ("%", "-F: the format ends in a field that is not whole"),
            ("a%k", "-F: `%k` is not a field"),
            ("a\\k", "-F: `\\k` is not an escape"),
            ("\\", "-F: the format ends in a backslash"),
            ("@", "-F: the format ends in an @ that is not whole"),
            ("@!", "-F: `@!` is not a part of a time"),
            ("%99999999999999999999t", "-F: a width is 10000 at most"),
        ] {
            assert_eq!(MessageFormat::parse(format), Err(error.to_string()), "{format}");
        }
    }
}
