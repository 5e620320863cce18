//! State of EMQX: banned clients and retained messages.

use std::collections::BTreeMap;

use auth::{Ban, BanKind};
use mqtt::{Property, PropertyWriter};

use super::term::{Record, Table, Term};
use crate::import::now_unix_ms;
use crate::import::report::{Outcome, Report};
use crate::import::retained::RetainedMessage;
use crate::import::setup::{Setup, ban_item};
use crate::journal_command::summary::count;

const BANS: [&str; 2] = ["emqx_banned", "emqx_banned_rules"];
const RETAINED: &str = "emqx_retainer_message";

/// Fields of the record of a message, behind its name.
const MESSAGE_QOS: usize = 2;
const MESSAGE_HEADERS: usize = 5;
const MESSAGE_TOPIC: usize = 6;
const MESSAGE_PAYLOAD: usize = 7;
/// EMQX 5.3 and earlier have no `extra` at the end.
const MESSAGE_FIELDS_MIN: usize = 9;

pub fn bans(tables: &BTreeMap<&'static str, Table>, setup: &mut Setup, report: &Report) {
    for name in BANS {
        let Some(table) = tables.get(name) else { continue };
        let path = format!("mnesia/{name}");
        for record in table.records() {
            match ban(&record) {
                Ok(ban) if ban.until_unix_ms.is_some_and(|until| until <= now_unix_ms()) => {
                    let because = "it has expired".to_owned();
                    report.add(&path, 0, &ban_item(&ban), Outcome::NotSupported { because });
                }
                Ok(ban) => {
                    report.add(
                        &path,
                        0,
                        &ban_item(&ban),
                        Outcome::Imported("data/banned.json".to_owned()),
                    );
                    setup.add_ban(ban);
                }
                Err(because) => report.add(&path, 0, "a ban", Outcome::NotSupported { because }),
            }
        }
    }
}

/// `{banned, Who, By, Reason, At, Until}`, with times in seconds.
fn ban(record: &Record<'_>) -> Result<Ban, String> {
    let who = record.get("who").map(Term::tuple).unwrap_or_default();
    let [kind, value] = who else {
        return Err("it is not a ban of EMQX".to_owned());
    };
    // A pattern is stored as text, before EMQX 6.1 also with its compiled form: `{{Compiled, Pattern}}`.
    let text = match value.tuple() {
        [_, pattern] => pattern.text(),
        _ => value.text(),
    };
    let (kind, who) = match (kind.name().unwrap_or_default(), text) {
        ("clientid", Some(id)) => (BanKind::ClientId, id.to_owned()),
        ("username", Some(name)) => (BanKind::UserName, name.to_owned()),
        ("clientid_re", Some(pattern)) => (BanKind::ClientIdPattern, pattern.to_owned()),
        ("username_re", Some(pattern)) => (BanKind::UserNamePattern, pattern.to_owned()),
        ("peerhost", _) => (BanKind::Address, address(value).ok_or("its address cannot be read")?),
        ("peerhost_net", _) => (BanKind::Network, network(value).ok_or("its network cannot be read")?),
        (kind, _) => return Err(format!("tidewire has no bans of the kind {kind}")),
    };
    let text = |field: &str| record.get(field).and_then(Term::text).unwrap_or_default().to_owned();
    let ms = |term: &Term| Some(u64::try_from(term.integer()?).ok()?.saturating_mul(1000));
    let until = record.get("until").ok_or("its end is missing")?;
    Ok(Ban {
        kind,
        who,
        reason: text("reason"),
        by: text("by"),
        at_unix_ms: record.get("at").and_then(ms).unwrap_or_default(),
        until_unix_ms: match until.is_atom("infinity") {
            true => None,
            false => Some(ms(until).ok_or("its end cannot be read")?),
        },
    })
}

/// `{127,0,0,1}`, or eight numbers of 16 bits.
fn address(term: &Term) -> Option<String> {
    let numbers: Option<Vec<u16>> = term
        .tuple()
        .iter()
        .map(|part| u16::try_from(part.integer()?).ok())
        .collect();
    let numbers = numbers?;
    if let Ok(words) = <[u16; 8]>::try_from(numbers.as_slice()) {
        return Some(std::net::Ipv6Addr::from(words).to_string());
    }
    let octets: Vec<u8> = numbers.iter().filter_map(|&number| u8::try_from(number).ok()).collect();
    let octets = <[u8; 4]>::try_from(octets.as_slice()).ok()?;
    (numbers.len() == 4).then(|| std::net::Ipv4Addr::from(octets).to_string())
}

/// `{First, Last, Length}`.
fn network(term: &Term) -> Option<String> {
    match term.tuple() {
        [first, _, length] => Some(format!("{}/{}", address(first)?, length.integer()?)),
        _ => term.text().map(str::to_owned),
    }
}

pub fn retained(tables: &BTreeMap<&'static str, Table>, setup: &mut Setup, report: &Report) {
    let Some(table) = tables.get(RETAINED) else { return };
    let path = format!("mnesia/{RETAINED}");
    let now = now_unix_ms();
    let (mut imported, mut expired) = (0, 0);
    for record in table.records() {
        let message = match message(&record) {
            Ok(message) => message,
            Err(because) => {
                report.add(&path, 0, "a message", Outcome::NotSupported { because });
                continue;
            }
        };
        if message.expires_unix_ms.is_some_and(|end| end <= now) {
            expired += 1;
        } else if let Some(because) = message.problem() {
            let item = format!("message of {}", message.topic);
            report.add(&path, 0, &item, Outcome::NotSupported { because });
        } else {
            imported += 1;
            setup.retained.push(message);
        }
    }
    if imported > 0 {
        let to = "data/journal".to_owned();
        report.add(&path, 0, &count(imported, "retained message"), Outcome::Imported(to));
    }
    if expired > 0 {
        let because = "they have expired".to_owned();
        report.add(
            &path,
            0,
            &count(expired, "expired message"),
            Outcome::NotSupported { because },
        );
    }
}

/// `{retained_message, Topic, Message, ExpiryTime}`, with the time in milliseconds and 0 for none.
fn message(record: &Record<'_>) -> Result<RetainedMessage, String> {
    let fields = record.get("msg").map(Term::tuple).unwrap_or_default();
    if fields.len() < MESSAGE_FIELDS_MIN || !fields[0].is_atom("message") {
        return Err("it is not a message of EMQX 5".to_owned());
    }
    let topic = fields[MESSAGE_TOPIC].text().ok_or("its topic is not UTF-8")?;
    let Term::Bytes(payload) = &fields[MESSAGE_PAYLOAD] else {
        return Err(format!("the payload of {topic} cannot be read"));
    };
    let expiry = record.get("expiry_time").and_then(Term::integer).unwrap_or_default();
    Ok(RetainedMessage {
        topic: topic.to_owned(),
        payload: payload.clone(),
        qos: fields[MESSAGE_QOS]
            .integer()
            .and_then(|qos| u8::try_from(qos).ok())
            .unwrap_or_default(),
        properties: properties(fields[MESSAGE_HEADERS].field("properties")),
        expires_unix_ms: u64::try_from(expiry).ok().filter(|expiry| *expiry > 0),
    })
}

fn properties(properties: Option<&Term>) -> Vec<u8> {
    let mut out = Vec::new();
    let Some(properties) = properties else { return out };
    let mut writer = PropertyWriter::new(&mut out);
    let text = |name: &str| properties.field(name).and_then(Term::text);
    if let Some(format @ (0 | 1)) = properties.field("Payload-Format-Indicator").and_then(Term::integer) {
        writer.put(Property::PayloadFormatIndicator(format as u8));
    }
    if let Some(content_type) = text("Content-Type") {
        writer.put(Property::ContentType(content_type));
    }
    if let Some(topic) = text("Response-Topic") {
        writer.put(Property::ResponseTopic(topic));
    }
    if let Some(Term::Bytes(data)) = properties.field("Correlation-Data") {
        writer.put(Property::CorrelationData(data));
    }
    for pair in properties
        .field("User-Property")
        .and_then(Term::list)
        .unwrap_or_default()
    {
        if let [name, value] = pair.tuple()
            && let (Some(name), Some(value)) = (name.text(), value.text())
        {
            writer.put(Property::UserProperty(name, value));
        }
    }
    writer.finish();
    out
}
