//! The server is killed again and again while devices publish at QoS 1: each point that was acknowledged is there, and only what was sent.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::support::*;
use crate::world::{NOW, World, device, open, points};

const KILLS: usize = 20;
const DEVICES: usize = 4;

#[test]
fn what_was_acknowledged_is_stored_though_the_server_is_killed() {
    let (mut world, ids) = World::new(|devices, tenant| {
        let name = |index: usize| (format!("D{index}"), format!("T{index}"));
        let names: Vec<_> = (0..DEVICES).map(name).collect();
        let ids = names.iter().map(|(name, token)| device(devices, tenant, name, token));
        ids.collect::<Vec<_>>()
    });
    // By device: sent, and the numbers that were acknowledged.
    let mut sent = [0_i64; DEVICES];
    let mut acknowledged: HashMap<usize, Vec<i64>> = HashMap::new();
    for round in 0..KILLS {
        let mut peers: Vec<Peer> = (0..DEVICES)
            .map(|index| world.connect(V4, &format!("T{index}")))
            .collect();
        let until = Instant::now() + Duration::from_millis(20 + 37 * (round as u64 % 7));
        while Instant::now() < until {
            for (index, peer) in peers.iter_mut().enumerate() {
                let n = sent[index];
                sent[index] += 1;
                let body = format!("{{\"ts\":{},\"values\":{{\"n\":{n}}}}}", NOW + n);
                peer.publish(&Publish::new("v1/devices/me/telemetry", body).qos(1));
                acknowledged.entry(index).or_default().push(n);
            }
        }
        // Some more that nobody waits for, so that the kill comes in the middle.
        for (index, peer) in peers.iter_mut().enumerate() {
            for _ in 0..50 {
                let n = sent[index];
                sent[index] += 1;
                let body = format!("{{\"ts\":{},\"values\":{{\"n\":{n}}}}}", NOW + n);
                let message = Publish::new("v1/devices/me/telemetry", body).qos(1).id(1000);
                if peer.try_send(&message.bytes(V4)).is_err() {
                    break;
                }
            }
        }
        world.server.kill();
        world.server.spawn_again();
        world.server.wait_until_ready();
    }
    world.server.terminate(Duration::from_secs(30));
    world.server.kill();
    let devices = open(&world.server);
    let (mut stored_sum, mut missing, mut strange) = (0, 0, 0);
    for (index, id) in ids.iter().enumerate() {
        let stored: HashMap<i64, _> = points(&devices, *id, "n")
            .into_iter()
            .map(|point| (point.ts_ms - NOW, point.value))
            .collect();
        stored_sum += stored.len();
        missing += acknowledged[&index].iter().filter(|n| !stored.contains_key(n)).count();
        strange += stored
            .iter()
            .filter(|(n, value)| **n >= sent[index] || **value != timeseries::Value::Long(**n))
            .count();
    }
    let acknowledged: usize = acknowledged.values().map(Vec::len).sum();
    println!(
        "{KILLS} kills: {acknowledged} acknowledged, {stored_sum} stored, {missing} missing, {strange} not as sent"
    );
    assert_eq!((missing, strange), (0, 0));
}
