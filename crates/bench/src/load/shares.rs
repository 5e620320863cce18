//! Shared subscriptions with members on several machines. Only all drivers together know which messages are lost.

use std::collections::BTreeMap;
use std::ops::Range;

use super::flow::{ReceivedSet, subtract};
use crate::driver::{ClientIndex, GroupIndex, ReconcileOutcome, SentCounts};
use crate::scenario::Scenario;

/// Compares the reports of all drivers in `outcome.shares` with the sent messages, and adds the result to the outcome.
pub fn conclude_shares(outcome: &mut ReconcileOutcome, sent: &[SentCounts], scenario: &Scenario) {
    let mut flows: BTreeMap<(String, GroupIndex, ClientIndex), ReceivedSet> = BTreeMap::new();
    for receipt in std::mem::take(&mut outcome.shares) {
        let received = flows
            .entry((receipt.filter, receipt.group, receipt.client))
            .or_default();
        let sequences = receipt.received.iter().flat_map(|(from, to)| *from..*to);
        outcome.truth.duplicated += sequences.filter(|sequence| !received.insert(*sequence)).count() as u64;
    }
    for ((filter, group, client), received) in flows {
        let accepted = accepted(sent, group, client);
        let count: u64 = accepted.iter().map(|range| range.len() as u64).sum();
        let missing: Vec<Range<u32>> = accepted.into_iter().flat_map(|range| received.missing(range)).collect();
        let lost: u64 = missing.iter().map(|range| range.len() as u64).sum();
        outcome.truth.flows += 1;
        outcome.truth.expected += count;
        outcome.truth.received += count - lost;
        outcome.truth.lost += lost;
        if lost > 0 {
            let words = describe_missing(&publisher(scenario, group, client), &missing, lost);
            outcome.examples.push(format!("no subscriber of {filter} got {words}"));
        }
    }
}

/// Returns the messages of a publisher that the broker accepted.
fn accepted(sent: &[SentCounts], group: GroupIndex, client: ClientIndex) -> Vec<Range<u32>> {
    let sequence = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let mut accepted = Vec::new();
    for part in sent.iter().filter(|part| part.group == group) {
        let Some(offset) = client.0.checked_sub(part.first.0) else {
            continue;
        };
        let Some(count) = part.counts.get(offset as usize) else {
            continue;
        };
        let own = part.unaccepted.iter().filter(|range| range.client == client);
        let mut refused: Vec<Range<u32>> = own.map(|range| sequence(range.from)..sequence(range.to)).collect();
        refused.sort_unstable_by_key(|range| range.start);
        let all: Range<u32> = 0..sequence(*count);
        accepted.extend(subtract([all].into(), &refused));
    }
    accepted
}

fn publisher(scenario: &Scenario, group: GroupIndex, client: ClientIndex) -> String {
    scenario.group.get(group.position()).map_or_else(String::new, |group| {
        format!("{}-{}", group.name, u64::from(group.start_number) + u64::from(client.0))
    })
}

/// Describes missing messages, as in "3 messages of publishers-2: 100..102".
pub fn describe_missing(publisher: &str, missing: &[Range<u32>], lost: u64) -> String {
    const RANGES_MAX: usize = 3;
    let ranges = missing.iter().take(RANGES_MAX).map(|range| match range.len() {
        1 => range.start.to_string(),
        _ => format!("{}..{}", range.start, range.end - 1),
    });
    let ranges: Vec<String> = ranges.collect();
    let more = if missing.len() > RANGES_MAX { ", …" } else { "" };
    let noun = if lost == 1 { "message" } else { "messages" };
    format!("{lost} {noun} of {}: {}{more}", publisher, ranges.join(", "))
}
