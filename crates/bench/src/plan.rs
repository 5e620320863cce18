//! Work before a run: how many deliveries each message causes, and which driver runs which clients.
//!
//! Each driver gets a contiguous range of the clients of a group, so that most pairs of publisher and subscriber are in
//! one driver.

use std::ops::Range;

use mqtt::SharedFilter;

use crate::driver::DriverJob;
use crate::load::{PatternValues, SENDERS_MAX, SenderNumber, TopicTemplate, TopicTree, expand};
use crate::scenario::{ClientGroup, GroupPresence, Scenario};
use crate::target::LoadTarget;

/// Most flows of a run. A driver needs eight bytes for each of its flows and some time at the end to compare them.
const FLOWS_MAX: u64 = 1_000_000_000;

/// The number of clients and of deliveries of a scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScenarioSize {
    pub clients: u64,
    pub publishers: u64,
    pub subscribers: u64,
    /// Pairs of a publisher and a subscriber (or a shared subscription) that receives its messages: the number of
    /// deliveries if every publisher sends one message.
    pub flows: u64,
}

/// Computes the reach of a scenario; fails if it has too many publishers or flows.
pub fn reach(scenario: &Scenario) -> Result<ScenarioSize, String> {
    let clients = |groups: &mut dyn Iterator<Item = &ClientGroup>| groups.map(|group| u64::from(group.clients)).sum();
    let mut reach = ScenarioSize {
        clients: clients(&mut scenario.group.iter()),
        publishers: clients(&mut scenario.group.iter().filter(|group| publishes(group))),
        subscribers: clients(&mut scenario.group.iter().filter(|group| !group.subscribe.is_empty())),
        flows: 0,
    };
    if reach.publishers > SENDERS_MAX {
        return Err(format!(
            "the scenario has {} publishers; at most {SENDERS_MAX} are possible",
            reach.publishers
        ));
    }
    let tree = tree(scenario);
    let mut shares = std::collections::HashSet::new();
    for group in scenario.group.iter().filter(|group| !group.subscribe.is_empty()) {
        reach.flows += flows(group, &tree, &mut shares);
    }
    match reach.flows > FLOWS_MAX {
        true => Err(format!(
            "the scenario has {} flows (pairs of publisher and subscriber); at most {FLOWS_MAX} can be compared",
            reach.flows
        )),
        false => Ok(reach),
    }
}

fn publishes(group: &ClientGroup) -> bool {
    group.publish.is_some() && group.cycle.is_none() && group.presence == GroupPresence::Always
}

fn tree(scenario: &Scenario) -> TopicTree {
    let mut tree = TopicTree::new();
    let mut sender = 0;
    for group in scenario.group.iter().filter(|group| publishes(group)) {
        let pattern = group.publish.as_ref().map_or("", |publish| &publish.topic);
        for index in 0..group.clients {
            tree.add(
                &with_names(group, index, |names| TopicTemplate::new(pattern, names)),
                SenderNumber(sender),
            );
            sender += 1;
        }
    }
    tree
}

fn flows(group: &ClientGroup, tree: &TopicTree, shares: &mut std::collections::HashSet<String>) -> u64 {
    // If no filter contains the name or number of the client, the filters of all clients are equal.
    let is_own = |filter: &str| ["%i", "%c", "%u"].iter().any(|name| filter.contains(name));
    let differ = group.subscribe.iter().any(|subscribe| is_own(&subscribe.filter));
    let distinct = if differ { group.clients } else { 1 };
    let of_one = |index| -> u64 {
        let filters: Vec<String> = with_names(group, index, |names| {
            group
                .subscribe
                .iter()
                .map(|subscribe| expand(&subscribe.filter, names))
                .collect()
        });
        let (shared, plain): (Vec<_>, Vec<_>) = filters.iter().partition(|filter| filter.starts_with("$share/"));
        let own = tree.senders_for(plain.iter().map(|filter| filter.as_str())).len() as u64;
        let each = if differ { 1 } else { u64::from(group.clients) };
        let mut sum = own * each;
        for filter in shared {
            if shares.insert(filter.clone()) {
                let inner = SharedFilter::parse(filter).ok().flatten().map(|shared| shared.filter);
                sum += tree.senders_for(inner.into_iter()).len() as u64;
            }
        }
        sum
    };
    (0..distinct).map(of_one).sum()
}

fn with_names<R>(group: &ClientGroup, index: u32, with: impl FnOnce(&PatternValues<'_>) -> R) -> R {
    let mut names = PatternValues {
        number: u64::from(group.start_number) + u64::from(index),
        group: &group.name,
        ..PatternValues::default()
    };
    let user_pattern = group.user_name.as_deref().unwrap_or_default();
    let first_user = expand(user_pattern, &names);
    names.user_name = &first_user;
    let client_id = expand(&group.client_id, &names);
    names.client_id = &client_id;
    let user_name = expand(user_pattern, &names);
    names.user_name = &user_name;
    with(&names)
}

/// The properties of a driver that `split` needs.
#[derive(Clone, Copy, Debug)]
pub struct DriverSettings {
    /// Worker threads; 0 lets an agent use one per core.
    pub threads: u16,
    pub clock_offset_ns: i64,
}

/// Makes one job for each driver.
pub fn split(scenario: &Scenario, target: &LoadTarget, run: u16, drivers: &[DriverSettings]) -> Vec<DriverJob> {
    let count = drivers.len().max(1);
    let all: u64 = scenario.group.iter().map(|group| u64::from(group.clients)).sum();
    let jobs = drivers.iter().enumerate().map(|(index, settings)| {
        let clients: Vec<Range<u32>> = scenario
            .group
            .iter()
            .map(|group| part(group.clients, index, count))
            .collect();
        let own: u64 = clients.iter().map(|range| range.len() as u64).sum();
        let mut scenario = scenario.clone();
        scenario.connecting_max = (scenario.connecting_max / count as u32).max(1);
        DriverJob {
            connect_rate: scenario.connect_rate * own as f64 / all.max(1) as f64,
            scenario,
            target: target.clone(),
            run,
            clients,
            threads: settings.threads,
            clock_offset_ns: settings.clock_offset_ns,
            epoch_ns: 0,
        }
    });
    jobs.collect()
}

fn part(clients: u32, index: usize, count: usize) -> Range<u32> {
    let bound = |index: usize| (u64::from(clients) * index as u64 / count as u64) as u32;
    bound(index)..bound(index + 1)
}

/// Returns the number of clients of a job.
pub fn clients_of(job: &DriverJob) -> u64 {
    job.clients.iter().map(|range| range.len() as u64).sum()
}

/// Fails if this machine has too few local ports for the connections of a job to one address; the error says how to get
/// more.
pub fn check_ports(job: &DriverJob) -> Result<(), String> {
    let (low, high) = local_ports();
    let ports = u64::from(high.saturating_sub(low)) + 1;
    let routes = job.target.hosts.len().max(1) * job.target.source_addresses.len().max(1);
    let clients = clients_of(job);
    if clients <= ports * routes as u64 {
        return Ok(());
    }
    let wanted = clients.div_ceil(ports * job.target.hosts.len().max(1) as u64);
    Err(format!(
        "{clients} connections need {wanted} source addresses of {ports} ports each ({low} to {high}): set them with --ifaddr \
         (for a broker on this machine 127.0.0.2,127.0.0.3,… need no set-up), or widen the range net.ipv4.ip_local_port_range"
    ))
}

/// Returns the first and the last local port: Linux's default if the setting cannot be read.
fn local_ports() -> (u32, u32) {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut bounds = text.split_whitespace().map_while(|word| word.parse().ok());
    match (bounds.next(), bounds.next()) {
        (Some(low), Some(high)) => (low, high),
        _ => (32768, 60999),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::presets;

    fn preset(name: &str) -> Scenario {
        presets::all().find(|scenario| scenario.name == name).unwrap()
    }

    #[test]
    fn reach_of_presets_is_as_documented() {
        for (name, publishers, subscribers, flows) in [
            ("fanout", 10, 1_000, 10_000),
            ("fanin", 1_000, 1, 1_000),
            ("p2p", 1_000, 1_000, 1_000),
            ("shared", 100, 20, 100),
            ("tbmq-fanout", 100, 3_000, 300_000),
            ("tbmq-p2p", 100_000, 100_000, 100_000),
            ("nanomq-broadcast", 20, 500, 10_000),
            ("emqx-kafka", 100_000, 0, 0),
        ] {
            let reach = reach(&preset(name)).unwrap();
            assert_eq!(
                (reach.publishers, reach.subscribers, reach.flows),
                (publishers, subscribers, flows),
                "{name}"
            );
        }
    }

    #[test]
    fn split_of_presets_assigns_each_client_once() {
        for scenario in presets::all() {
            let reach = reach(&scenario).unwrap();
            for count in [1, 3, 7] {
                let drivers = vec![
                    DriverSettings {
                        threads: 1,
                        clock_offset_ns: 0
                    };
                    count
                ];
                let jobs = split(&scenario, &LoadTarget::default(), 1, &drivers);
                assert_eq!(jobs.iter().map(clients_of).sum::<u64>(), reach.clients);
                let rate: f64 = jobs.iter().map(|job| job.connect_rate).sum();
                assert!((rate - scenario.connect_rate).abs() < 1e-6);
                for (number, group) in scenario.group.iter().enumerate() {
                    let mut ranges: Vec<Range<u32>> = jobs.iter().map(|job| job.clients[number].clone()).collect();
                    ranges.retain(|range| !range.is_empty());
                    assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
                    assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, group.clients));
                }
            }
        }
    }

    #[test]
    fn reach_of_half_a_million_pairs_is_fast() {
        let mut scenario = preset("tbmq-p2p");
        for group in &mut scenario.group {
            group.clients = 500_000;
        }
        assert_eq!(reach(&scenario).unwrap().flows, 500_000);
    }

    #[test]
    fn reach_with_too_many_flows_fails() {
        let mut scenario = preset("fanout");
        for group in &mut scenario.group {
            group.clients = 100_000;
        }
        assert!(reach(&scenario).unwrap_err().contains("10000000000 flows"));
    }

    #[test]
    fn check_ports_with_too_few_ports_fails() {
        let scenario = preset("tbmq-p2p");
        let drivers = [DriverSettings {
            threads: 1,
            clock_offset_ns: 0,
        }];
        let target = LoadTarget {
            hosts: vec!["127.0.0.1".into()],
            ..LoadTarget::default()
        };
        let message = check_ports(&split(&scenario, &target, 1, &drivers)[0]).unwrap_err();
        assert!(message.contains("source addresses"), "{message}");
        let source_addresses = (2..12)
            .map(|last| std::net::Ipv4Addr::new(127, 0, 0, last).into())
            .collect();
        let target = LoadTarget {
            source_addresses,
            ..target
        };
        check_ports(&split(&scenario, &target, 1, &drivers)[0]).unwrap();
    }
}
