//! Compares acknowledged messages with received messages.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::load::Load;
use super::message::{Id, RETAINED};
use super::publisher::{Publisher, Sent, all_sent};
use super::subscriber::{Got, Subscriber, Want};

/// Returns the messages that a subscription must receive. Shared filters begin with `$share/{name}/`.
pub fn expected(want: Want, publishers: &[Publisher]) -> HashSet<Id> {
    let acknowledged = all_sent(publishers).filter(|sent| sent.acknowledged.is_some());
    let ids = acknowledged.map(|sent| sent.id);
    ids.filter(|id| id.lane.topic != RETAINED && matches(want.filter, &id.lane.topic_name()))
        .collect()
}

/// Matches the filters of this suite: literal levels, `+` for a level and `#` at the end.
fn matches(filter: &str, topic: &str) -> bool {
    let filter = match filter.strip_prefix("$share/") {
        Some(shared) => shared.split_once('/').expect("a share name").1,
        None => filter,
    };
    let mut levels = topic.split('/');
    for wanted in filter.split('/') {
        match (wanted, levels.next()) {
            ("#", _) | ("+", Some(_)) => {}
            (wanted, Some(level)) if wanted == level => {}
            _ => return false,
        }
    }
    filter.ends_with('#') || levels.next().is_none()
}

/// Compares sent and received messages. `who` is one subscriber or all members of a shared subscription.
pub fn judge(who: &[&Subscriber], publishers: &[Publisher], load: &Load) {
    let names: Vec<&str> = who.iter().map(|subscriber| subscriber.name).collect();
    let names = names.join(" and ");
    let want = who[0].want;
    let mut got: HashMap<Id, Vec<(&str, Got)>> = HashMap::new();
    for subscriber in who {
        for message in &subscriber.got {
            got.entry(message.id).or_default().push((subscriber.name, *message));
        }
        // With several members of a shared subscription, a message that one member returns is redelivered late to
        // another.
        if who.len() == 1 {
            in_order(subscriber, load);
        }
    }
    let sent: BTreeMap<Id, &Sent> = all_sent(publishers).map(|sent| (sent.id, sent)).collect();
    for id in expected(want, publishers) {
        if !got.contains_key(&id) {
            load.report(format!("{names} never got {id}, {}", sent[&id]));
        }
    }
    for (id, times) in &got {
        let times: Vec<String> = times.iter().map(|(name, got)| format!("{name} {got}")).collect();
        match sent.get(id) {
            None => load.report(format!(
                "{names} received {id}, which no publisher sent: {}",
                times.join(", ")
            )),
            Some(sent) if times.len() > 1 && id.lane.qos.min(want.qos) == 2 => {
                let count = times.len();
                load.report(format!("{names} got {id} {count} times: {}; {sent}", times.join(", ")));
            }
            Some(_) => {}
        }
    }
}

/// Checks that first deliveries arrive in publishing order.
fn in_order(subscriber: &Subscriber, load: &Load) {
    let mut latest: HashMap<_, Got> = HashMap::new();
    let mut seen = HashSet::new();
    for got in &subscriber.got {
        if !seen.insert(got.id) {
            continue;
        }
        if let Some(before) = latest.insert(got.id.lane, *got)
            && before.id.number > got.id.number
        {
            let name = subscriber.name;
            load.report(format!("{name} got {} {got} after {} {before}", got.id, before.id));
        }
    }
}

/// Returns the number of deliveries and how many of them were redeliveries.
pub fn count(subscribers: &[Subscriber]) -> (usize, usize) {
    let all = subscribers.iter().map(|subscriber| subscriber.got.len()).sum();
    let unique = |subscriber: &Subscriber| subscriber.got.iter().map(|got| got.id).collect::<HashSet<_>>().len();
    let first: usize = subscribers.iter().map(unique).sum();
    (all, all - first)
}
