//! Tests backups of the device platform while devices publish.
//!
//! Each backup contains every point that was acknowledged before the backup began.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use super::world::{NOW, World, device, open, points};
use crate::support::*;

const BACKUPS: usize = 3;

#[test]
fn backup_under_load_contains_all_points_acknowledged_before_it() {
    let (mut world, id) = World::new(|devices, tenant| device(devices, tenant, "D", "T"));
    let directory = world.server.dir().to_owned();
    let mut peer = world.connect(V4, "T");
    let (acknowledged, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let before: Vec<u64> = std::thread::scope(|scope| {
        let _over = SetOnDrop(&is_over);
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                let number = acknowledged.load(SeqCst);
                let ts = NOW + number as i64;
                let body = format!("{{\"ts\":{ts},\"values\":{{\"n\":{number}}}}}");
                peer.publish(&Publish::new("v1/devices/me/telemetry", body).qos(1));
                acknowledged.fetch_add(1, SeqCst);
            }
        });
        let taken = (0..BACKUPS).map(|number| {
            let wanted = acknowledged.load(SeqCst) + 100;
            world
                .server
                .wait_until("more points are acknowledged", |_| acknowledged.load(SeqCst) >= wanted);
            let before = acknowledged.load(SeqCst);
            let output = done(tidewire(
                &directory,
                &["backup", "--data-dir", "data", "--to", &copy(number)],
            ));
            assert!(output.contains("of the device platform: "), "{output}");
            before
        });
        taken.collect()
    });
    world.server.kill();

    for (number, before) in before.into_iter().enumerate() {
        fs::remove_dir_all(directory.join("data")).expect("the data directory can be removed");
        done(tidewire(
            &directory,
            &["restore", "--data-dir", "data", "--from", &copy(number)],
        ));
        let devices = open(&world.server);
        let mut stored = points(&devices, id, "n");
        stored.sort_by_key(|point| point.ts_ms);
        assert!(stored.len() as u64 >= before, "{} of {before}", stored.len());
        for (number, point) in stored.iter().enumerate() {
            let expected = (NOW + number as i64, &timeseries::PointValue::Long(number as i64));
            assert_eq!((point.ts_ms, &point.value), expected);
        }
        devices.shut_down();
    }

    assert!(!directory.join("data/platform.backup").exists());
    let _ = fs::remove_dir_all(copy(BACKUPS - 1));

    world.server.spawn_again();
    world.server.wait_until_ready();
    world.connect(V4, "T").ping_alone();
}

/// Path of a backup. The last backup is on another disk if the machine has one.
fn copy(number: usize) -> String {
    match number + 1 == BACKUPS && Path::new("/dev/shm").is_dir() {
        true => format!("/dev/shm/tidewire-test-{}", std::process::id()),
        false => format!("copy-{number}"),
    }
}

fn tidewire(directory: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidewire"));
    command.current_dir(directory).args(args);
    command.output().expect("the program starts")
}

fn done(output: Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
