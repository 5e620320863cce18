//! State of EMQX: banned clients and retained messages.
//!
//! A ban that cannot be imported ends the import: without it, a banned client could connect.

use std::collections::BTreeMap;

use auth::{Ban, BanKind, EXACT_BANS_MAX, PATTERN_BANS_MAX};
use mqtt::{Property, PropertyWriter};

use super::pattern;
use super::term::{Record, Table, Term};
use super::unreadable::Unreadable;
use crate::import::now_unix_ms;
use crate::import::report::{Outcome, Report};
use crate::import::retained::RetainedMessage;
use crate::import::setup::{Setup, ban_item};
use crate::journal_command::summary::count;

pub const BANS: [&str; 2] = ["emqx_banned", "emqx_banned_rules"];
const RETAINED: &str = "emqx_retainer_message";
const BAN_REMEDY: &str = "change or delete these bans in EMQX, and export again";
/// Maximum length of the reason of a ban.
const REASON_BYTES_MAX: usize = 1024;

/// Fields of the record of a message, behind its name.
const MESSAGE_QOS: usize = 2;
const MESSAGE_HEADERS: usize = 5;
const MESSAGE_TOPIC: usize = 6;
const MESSAGE_PAYLOAD: usize = 7;
/// EMQX 5.3 and earlier have no `extra` at the end.
const MESSAGE_FIELDS_MIN: usize = 9;

pub fn bans(tables: &BTreeMap<&'static str, Table>, setup: &mut Setup, report: &Report) -> Result<(), String> {
    let (mut exact, mut patterns) = (0, 0);
    if !tables.contains_key("emqx_banned") {
        let because = "the archive contains no table of bans; ban clients in the console".to_owned();
        report.add("mnesia/emqx_banned", 0, "bans", Outcome::NotSupported { because });
    }
    for name in BANS {
        let Some(table) = tables.get(name) else { continue };
        let path = format!("mnesia/{name}");
        let mut unreadable = Unreadable::default();
        for record in table.records() {
            let ban = match ban(&record) {
                Ok(ban) => ban,
                Err(because) => {
                    unreadable.add(because);
                    continue;
                }
            };
            if ban.until_unix_ms.is_some_and(|until| until <= now_unix_ms()) {
                let because = "it has expired".to_owned();
                report.add(&path, 0, &ban_item(&ban), Outcome::NotSupported { because });
                continue;
            }
            if let Err(error) = ban.check() {
                // An error of a pattern has several lines, with the reason in the last one.
                let error = error.to_string();
                let because = error.lines().last().unwrap_or_default();
                unreadable.add(format!("{}: {because}", ban_item(&ban)));
                continue;
            }
            let is_pattern = matches!(ban.kind, BanKind::ClientIdPattern | BanKind::UserNamePattern);
            if let Some(because) = pattern::difference(&ban.who).filter(|_| is_pattern) {
                unreadable.add(format!("{}: {because}", ban_item(&ban)));
                continue;
            }
            match ban.kind.is_exact() {
                true => exact += 1,
                false => patterns += 1,
            }
            let to = "data/banned.json".to_owned();
            report.add(&path, 0, &ban_item(&ban), Outcome::Imported(to));
            setup.add_ban(ban);
        }
        if let Some((number, because)) = unreadable.summary("ban") {
            return Err(format!("{path}: {number} cannot be imported: {because}; {BAN_REMEDY}"));
        }
    }
    for (number, max, what) in [
        (exact, EXACT_BANS_MAX, "single clients, users and addresses"),
        (patterns, PATTERN_BANS_MAX, "networks and patterns"),
    ] {
        if number > max {
            return Err(format!("{number} bans of {what} are more than {max}; {BAN_REMEDY}"));
        }
    }
    Ok(())
}

/// `{banned, Who, By, Reason, At, Until}`, with times in seconds.
fn ban(record: &Record<'_>) -> Result<Ban, String> {
    let who = record.get("who").map(Term::tuple).unwrap_or_default();
    let [kind, value] = who else {
        return Err("it is not a ban of EMQX".to_owned());
    };
    let name = || value.text().map(str::to_owned).ok_or("its client or user is not UTF-8");
    // A pattern is stored as text, before EMQX 6.1 also with its compiled form: `{{Compiled, Pattern}}`.
    let pattern = || match value.tuple() {
        [_, pattern] => pattern.text().map(str::to_owned).ok_or("its pattern cannot be read"),
        _ => name(),
    };
    let (kind, who) = match kind.name().unwrap_or_default() {
        "clientid" => (BanKind::ClientId, name()?),
        "username" => (BanKind::UserName, name()?),
        "clientid_re" => (BanKind::ClientIdPattern, pattern()?),
        "username_re" => (BanKind::UserNamePattern, pattern()?),
        "peerhost" => (BanKind::Address, address(value).ok_or("its address cannot be read")?),
        "peerhost_net" => (BanKind::Network, network(value).ok_or("its network cannot be read")?),
        kind => return Err(format!("tidewire has no bans of the kind {kind}")),
    };
    let text = |field: &str| {
        let text = record.get(field).and_then(Term::text).unwrap_or_default();
        text[..text.floor_char_boundary(REASON_BYTES_MAX)].to_owned()
    };
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
    let mut unreadable = Unreadable::default();
    for record in table.records() {
        let message = match message(&record) {
            Ok(message) => message,
            Err(because) => {
                unreadable.add(because);
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
    unreadable.report(&path, "message", report);
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
        return Err("its payload cannot be read".to_owned());
    };
    let qos = fields[MESSAGE_QOS].integer().and_then(|qos| u8::try_from(qos).ok());
    // A message that expires at an unknown time could stay forever.
    let expiry = record.get("expiry_time").and_then(Term::integer);
    let expiry = expiry.and_then(|expiry| u64::try_from(expiry).ok());
    Ok(RetainedMessage {
        topic: topic.to_owned(),
        payload: payload.clone(),
        qos: qos.filter(|qos| *qos <= 2).ok_or("its QoS cannot be read")?,
        properties: properties(fields[MESSAGE_HEADERS].field("properties")),
        expires_unix_ms: Some(expiry.ok_or("its expiry cannot be read")?).filter(|expiry| *expiry > 0),
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

#[cfg(test)]
mod tests {
    use super::super::term::TermBudget;
    use super::super::term::tests::{atom, bytes, table_file, tuple};
    use super::*;

    fn tables(name: &'static str, fields: &[&str], records: &[Vec<Term>]) -> BTreeMap<&'static str, Table> {
        let file = table_file(name, fields, records);
        let table = Table::read(name, &file, &mut TermBudget::default()).expect("valid");
        BTreeMap::from([(name, table)])
    }

    fn record(topic: &str, qos: Term, payload: Term, expiry: Term) -> Vec<Term> {
        let message = [
            atom("message"),
            bytes("id"),
            qos,
            bytes("publisher"),
            Term::Map(Vec::new()),
            Term::Map(Vec::new()),
            bytes(topic),
            payload,
            Term::Integer(0),
        ];
        vec![bytes(topic), tuple(&message), expiry]
    }

    #[test]
    fn messages_with_an_unreadable_part_are_counted() {
        let one = || Term::Integer(1);
        let records = [
            record("a", one(), bytes("x"), Term::Integer(0)),
            record("b", one(), bytes("x"), Term::Integer(-1)),
            record("c", one(), bytes("x"), atom("soon")),
            record("d", one(), bytes("x"), Term::Other),
            record("e", Term::Integer(3), bytes("x"), Term::Integer(0)),
            record("f", one(), one(), Term::Integer(0)),
        ];
        let tables = tables(RETAINED, &["topic", "msg", "expiry_time"], &records);
        let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
        retained(&tables, &mut setup, &report);
        let topics: Vec<&str> = setup.retained.iter().map(|message| message.topic.as_str()).collect();
        assert_eq!(topics, ["a"]);
        let text = report.text("title");
        for part in [
            "5 unreadable messages",
            "its expiry cannot be read (3)",
            "its QoS cannot be read (1)",
            "its payload cannot be read (1)",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    fn ban_of(kind: &str, value: Term, until: Term) -> Vec<Term> {
        vec![
            tuple(&[atom(kind), value]),
            bytes("by"),
            bytes(&"é".repeat(1000)),
            Term::Integer(0),
            until,
        ]
    }

    fn import_bans(records: &[Vec<Term>]) -> (Result<(), String>, String) {
        let tables = tables("emqx_banned", &["who", "by", "reason", "at", "until"], records);
        let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
        let result = bans(&tables, &mut setup, &report);
        (result, report.text("title"))
    }

    #[test]
    fn bans_that_cannot_be_imported_end_the_import() {
        let never = || atom("infinity");
        let mut no_kind = ban_of("clientid", bytes("x"), never());
        no_kind[0] = atom("x");
        let mut no_end = ban_of("clientid", bytes("x"), never());
        no_end.pop();
        let good = ban_of("clientid", bytes("thief"), never());
        for (bad, part) in [
            (ban_of("clientid", bytes("x"), atom("soon")), "its end cannot be read"),
            (
                ban_of("clientid", bytes("x"), Term::Integer(-1)),
                "its end cannot be read",
            ),
            (no_end, "its end is missing"),
            (no_kind, "it is not a ban of EMQX"),
            (ban_of("clientid", Term::Bytes(vec![0xFF]), never()), "not UTF-8"),
            (
                ban_of("certificate", bytes("x"), never()),
                "no bans of the kind certificate",
            ),
            (ban_of("peerhost", tuple(&[Term::Integer(300)]), never()), "its address"),
            (
                ban_of("clientid_re", bytes("a(?!b)"), never()),
                "client_id_pattern a(?!b)",
            ),
            (
                ban_of("clientid_re", bytes("[a&&b]"), never()),
                "`&&` has another meaning",
            ),
            (ban_of("username_re", bytes("^\\w+$"), never()), "ISO 8859-1"),
            (ban_of("username", bytes(""), never()), "1 to 1024 bytes"),
        ] {
            let error = import_bans(&[good.clone(), bad]).0.unwrap_err();
            for part in ["mnesia/emqx_banned: 1 ban cannot be imported", part, "export again"] {
                assert!(error.contains(part), "{part}: {error}");
            }
        }
        let plain = ban_of("username_re", bytes("^(guest|test)-[0-9]+$"), never());
        let (result, report) = import_bans(&[plain, ban_of("clientid", bytes("a&&b\\w"), never())]);
        assert_eq!(result, Ok(()), "{report}");
        assert!(
            report.contains("ban of user_name_pattern ^(guest|test)-[0-9]+$"),
            "{report}"
        );
        let (result, report) = import_bans(&[good, ban_of("clientid", bytes("x"), Term::Integer(1))]);
        assert_eq!(result, Ok(()));
        assert!(report.contains("ban of client_id thief"), "{report}");
        assert!(report.contains("it has expired"), "{report}");
    }

    #[test]
    fn missing_table_of_bans_is_reported() {
        let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
        bans(&BTreeMap::new(), &mut setup, &report).expect("no bans");
        assert!(report.text("title").contains("the archive contains no table of bans"));
        assert!(!import_bans(&[]).1.contains("no table of bans"));
    }

    #[test]
    fn too_many_bans_end_the_import() {
        let pattern = |number: usize| ban_of("clientid_re", bytes(&format!("^{number}$")), atom("infinity"));
        let records: Vec<_> = (0..PATTERN_BANS_MAX).map(pattern).collect();
        assert_eq!(import_bans(&records).0, Ok(()));
        let records: Vec<_> = (0..=PATTERN_BANS_MAX).map(pattern).collect();
        let error = import_bans(&records).0.unwrap_err();
        assert!(
            error.contains("201 bans of networks and patterns are more than 200"),
            "{error}"
        );
    }
}
