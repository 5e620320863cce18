//! Deadlines, acknowledgements and limits of waiting requests.

use super::*;
use crate::sessions::ConnectionNumber;

const TENANT: TenantId = TenantId(Uuid([5; 16]));
const DEVICE: DeviceId = DeviceId(Uuid([1; 16]));
const ONE: SessionConnection = SessionConnection {
    session: Uuid([1; 16]),
    connection: ConnectionNumber(1),
};
const OTHER: SessionConnection = SessionConnection {
    connection: ConnectionNumber(2),
    ..ONE
};

fn waiting(is_persistent: bool, is_one_way: bool, retries: u32) -> PendingRpc {
    let call = DeviceRpc {
        method: "m".into(),
        params: "{}".into(),
        is_one_way,
        expires_ms: 1000,
        persistence: is_persistent.then(|| Persistence {
            retries: Some(retries),
            ..Persistence::default()
        }),
    };
    PendingRpc::new(TENANT, call, RpcCaller::None, is_persistent.then(Box::default), 0)
}

fn small() -> DeviceRpc {
    DeviceRpc {
        method: "m".into(),
        params: "{}".into(),
        is_one_way: false,
        expires_ms: 1000,
        persistence: None,
    }
}

fn calls(all: impl IntoIterator<Item = PendingRpc>) -> DeviceRpcs {
    let calls = DeviceRpcs::default();
    for waiting in all {
        let id = calls.next_id(DEVICE, TENANT, &small()).unwrap();
        let is_begun = waiting.stage == RpcStage::NotStored;
        calls.insert(DEVICE, id, waiting);
        if is_begun {
            calls.mark_stored(DEVICE, id);
        }
    }
    calls
}

fn sent(calls: &DeviceRpcs, over: SessionConnection, ack_by_ms: i64) -> Vec<i32> {
    let sending = calls.take_unsent(DEVICE, over, ack_by_ms);
    sending.into_iter().map(|sending| sending.id).collect()
}

#[test]
fn connection_gets_undelivered_requests_in_order() {
    let calls = calls([
        waiting(true, false, 0),
        waiting(false, true, 0),
        waiting(false, false, 0),
    ]);
    assert_eq!(sent(&calls, ONE, 10), [1, 2, 3]);
    assert!(sent(&calls, ONE, 10).is_empty());
    assert!(calls.reported(DEVICE, 1, true).1.is_some());
    assert!(
        calls.reported(DEVICE, 2, true).0.is_some(),
        "delivery finishes a one-way request"
    );
    assert_eq!(sent(&calls, OTHER, 10), [3]);
    calls.reported(DEVICE, 3, false);
    assert_eq!(calls.first_unsent(DEVICE).map(|sending| sending.id), Some(3));
    assert_eq!(calls.count(), 2);
}

#[test]
fn unstored_request_blocks_later_requests() {
    let calls = calls([waiting(false, false, 0)]);
    calls.insert(DEVICE, 2, waiting(true, false, 0));
    calls.insert(DEVICE, 3, waiting(false, false, 0));
    assert_eq!(sent(&calls, ONE, 10), [1]);
    assert!(calls.first_unsent(DEVICE).is_none());
    assert_eq!(
        calls.take_due(2000, |_| true).len(),
        2,
        "an unstored request has no deadline"
    );
    calls.insert(DEVICE, 4, waiting(false, false, 0));
    assert!(calls.unstored_rpc(DEVICE, 2).is_some());
    calls.mark_stored(DEVICE, 2);
    assert_eq!(sent(&calls, ONE, 10), [2, 4]);
}

#[test]
fn unacknowledged_request_is_resent_up_to_its_retries() {
    let calls = calls([waiting(true, false, 1), waiting(false, false, 0)]);
    sent(&calls, ONE, 10);
    assert!(calls.take_due(9, |_| true).is_empty());
    assert!(matches!(
        calls.take_due(10, |_| true)[..],
        [OverdueRpc::Unacknowledged(DEVICE, _)]
    ));
    assert_eq!(sent(&calls, ONE, 20), [1]);
    assert!(
        matches!(calls.take_due(20, |_| false)[..], [OverdueRpc::Requeued(_)]),
        "a closed connection does not count as a retry"
    );
    sent(&calls, OTHER, 30);
    assert!(matches!(calls.take_due(30, |_| true)[..], [OverdueRpc::Failed(_, 1)]));
    assert!(matches!(calls.take_due(1000, |_| true)[..], [OverdueRpc::Expired(_)]));
    assert_eq!(calls.count(), 0);
}

/// Adds a request that is not persistent (2), and two persistent ones. Request 1 waits for its acknowledgement.
fn calls_at(created_ms: i64) -> DeviceRpcs {
    let calls = DeviceRpcs::default();
    for (id, is_persistent, lifetime_ms) in [(1, true, 3_600_000), (2, false, 5000), (3, true, 60_000)] {
        let call = DeviceRpc {
            expires_ms: created_ms + lifetime_ms,
            persistence: is_persistent.then(Persistence::default),
            ..small()
        };
        let stored_rpc = is_persistent.then(Box::default);
        calls.insert(
            DEVICE,
            id,
            PendingRpc::new(TENANT, call, RpcCaller::None, stored_rpc, created_ms),
        );
        if id == 1 {
            calls.mark_stored(DEVICE, 1);
            sent(&calls, ONE, created_ms + ACK_MS);
        }
    }
    calls.mark_stored(DEVICE, 3);
    calls
}

fn due(calls: &DeviceRpcs) -> Vec<(i64, i32)> {
    let inner = lock(&calls.inner);
    assert_eq!(inner.due.len(), inner.waiting.len());
    inner.due.iter().map(|(at_ms, _, id)| (*at_ms, *id)).collect()
}

#[test]
fn clock_set_back_limits_waits() {
    let hour_ms = 3_600_000;
    let created_ms = 5 * hour_ms;
    let calls = calls_at(created_ms);
    let original = [(5000, 2), (ACK_MS, 1), (60_000, 3)];
    let after = |now_ms: i64| original.map(|(wait_ms, id)| (now_ms + wait_ms, id));
    assert!(calls.take_due(created_ms + 1000, |_| true).is_empty());
    assert_eq!(due(&calls), after(created_ms));
    // Threads read the clock at slightly different times.
    assert!(calls.take_due(created_ms + 500, |_| true).is_empty());
    assert_eq!(due(&calls), after(created_ms));
    let earlier_ms = created_ms - hour_ms;
    assert!(calls.take_due(earlier_ms, |_| true).is_empty());
    assert_eq!(due(&calls), after(earlier_ms));
    assert!(calls.take_due(earlier_ms + 4999, |_| true).is_empty());
    assert!(matches!(
        calls.take_due(earlier_ms + 5000, |_| true)[..],
        [OverdueRpc::Expired(_)]
    ));
    assert!(matches!(
        calls.take_due(earlier_ms + ACK_MS, |_| true)[..],
        [OverdueRpc::Unacknowledged(DEVICE, _)]
    ));
}

/// The clock was set back after the request was added and before the next check.
#[test]
fn clock_set_back_at_once_limits_waits() {
    let calls = calls_at(7_200_000);
    calls.take_due(7_200_000, |_| true);
    let call = DeviceRpc {
        expires_ms: 10_805_000,
        ..small()
    };
    calls.insert(
        DEVICE,
        4,
        PendingRpc::new(TENANT, call, RpcCaller::None, None, 10_800_000),
    );
    calls.take_due(7_200_000, |_| true);
    assert!(due(&calls).contains(&(7_205_000, 4)));
}

/// The clock was set back while the server was down.
#[test]
fn first_check_limits_waits_of_restored_requests() {
    let calls = DeviceRpcs::default();
    let call = DeviceRpc {
        expires_ms: 3_660_000,
        persistence: Some(Persistence::default()),
        ..small()
    };
    let restored = PendingRpc::new(TENANT, call, RpcCaller::None, Some(Box::default()), 3_600_000);
    calls.insert(DEVICE, 1, restored.restored(false));
    assert!(calls.take_due(1000, |_| true).is_empty());
    assert_eq!(due(&calls), [(61_000, 1)]);
}

/// The machine starts with an early time, and receives the right one later.
#[test]
fn corrected_clock_restores_the_deadlines() {
    let calls = DeviceRpcs::default();
    let call = DeviceRpc {
        expires_ms: 86_400_000 + 3_600_000,
        persistence: Some(Persistence::default()),
        ..small()
    };
    let restored = PendingRpc::new(TENANT, call, RpcCaller::None, Some(Box::default()), 3_600_000);
    calls.insert(DEVICE, 1, restored.restored(false));
    assert!(calls.take_due(1000, |_| true).is_empty());
    assert_eq!(due(&calls), [(86_401_000, 1)]);
    assert!(calls.take_due(86_500_000, |_| true).is_empty());
    assert_eq!(due(&calls), [(90_000_000, 1)]);
    assert!(matches!(
        calls.take_due(90_000_000, |_| true)[..],
        [OverdueRpc::Expired(_)]
    ));
}

#[test]
fn deadline_of_an_unstored_request_is_limited() {
    let calls = DeviceRpcs::default();
    let call = DeviceRpc {
        expires_ms: 3_660_000,
        persistence: Some(Persistence::default()),
        ..small()
    };
    let unstored = PendingRpc::new(TENANT, call, RpcCaller::None, Some(Box::default()), 3_600_000);
    calls.insert(DEVICE, 1, unstored);
    assert!(calls.take_due(1000, |_| true).is_empty());
    calls.mark_stored(DEVICE, 1);
    assert_eq!(due(&calls), [(61_000, 1)]);
}

#[test]
fn replayed_response_matches_only_restored_requests() {
    let calls = calls([waiting(true, false, 0).restored(true), waiting(true, false, 0)]);
    assert!(calls.remove_restored(DEVICE, 1).is_some_and(|call| call.was_sent()));
    assert!(calls.remove_restored(DEVICE, 1).is_none());
    assert!(calls.remove_restored(DEVICE, 2).is_none());
    assert_eq!(calls.count(), 1);
}

#[test]
fn deleted_device_has_no_requests() {
    let calls = calls([waiting(true, false, 0), waiting(false, false, 0)]);
    let other = DeviceId(Uuid([2; 16]));
    calls.insert(other, 9, waiting(false, false, 0));
    assert_eq!(calls.remove_all(DEVICE).len(), 2);
    assert_eq!(calls.count(), 1);
    assert!(calls.take_due(2000, |_| true).len() == 1, "the other device's request");
}

#[test]
fn requests_per_device_are_limited() {
    let calls = calls((0..CALLS_OF_DEVICE_MAX).map(|_| waiting(false, false, 0)));
    assert_eq!(calls.next_id(DEVICE, TENANT, &small()), Err(RpcError::TooMany));
    assert!(calls.next_id(DeviceId(Uuid([2; 16])), TENANT, &small()).is_ok());
}

#[test]
fn large_requests_of_one_tenant_leave_space_for_others() {
    let calls = DeviceRpcs::default();
    let other = TenantId(Uuid([6; 16]));
    let large = DeviceRpc {
        params: "x".repeat(1 << 20),
        ..small()
    };
    for n in 0..129_u32 {
        let mut device = [3; 16];
        device[..4].copy_from_slice(&n.to_le_bytes());
        let device = DeviceId(Uuid(device));
        match calls.next_id(device, TENANT, &large) {
            Ok(id) => calls.insert(
                device,
                id,
                PendingRpc::new(TENANT, large.clone(), RpcCaller::None, None, 0),
            ),
            Err(error) => assert_eq!((error, n), (RpcError::TooMany, 128)),
        }
    }
    assert_eq!(calls.count(), 128);
    assert!(calls.next_id(DEVICE, other, &large).is_ok());
    calls.take_due(1000, |_| true);
    assert!(calls.next_id(DEVICE, TENANT, &large).is_ok());
}
