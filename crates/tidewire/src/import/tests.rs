//! Tests the parser with invalid files, and the numbers of messages in flight.

use super::mosquitto::{Database, MosquittoQueued, MosquittoState, NotADatabase, StoreId};
use super::queue::ImportedQueue;

/// Returns a file of version 6 with one chunk of each kind.
fn file() -> Vec<u8> {
    file_of(&|_| true)
}

/// Returns a file that lacks the session of its subscription and of its queued message.
pub fn file_without_session() -> Vec<u8> {
    file_of(&|kind| kind != 6)
}

fn file_of(is_in: &dyn Fn(u8) -> bool) -> Vec<u8> {
    let mut file = b"\x00\xB5\x00mosquitto db".to_vec();
    file.extend([0, 0, 0, 0, 0, 0, 0, 6]);
    let mut chunk = |kind: u8, parts: &[&[u8]]| {
        if !is_in(kind) {
            return;
        }
        let body = parts.concat();
        file.extend([0, 0, 0, kind]);
        file.extend((body.len() as u32).to_be_bytes());
        file.extend(body);
    };
    let id = 7u64.to_le_bytes();
    chunk(1, &[&id, &[1, 8], &[0; 6]]);
    let lengths = [0, 0, 0, 2, 0, 1, 0, 3, 0, 0, 0, 5, 0, 0, 1, 1];
    chunk(
        2,
        &[
            &id,
            &[0; 8],
            &lengths[..4],
            &lengths[4..],
            b"src",
            b"t/tpc",
            b"hi",
            &[2, 0x01, 1],
        ],
    );
    chunk(6, &[&[0; 8], &[0xFF; 4], &[0, 9, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], b"c"]);
    chunk(3, &[&id, &[0, 4, 0, 1, 1, 3, 0, 1], b"c", &[2, 0x0B, 5]]);
    chunk(5, &[&[0, 0, 0, 5, 0, 1, 0, 3, 1, 0x08, 0, 0], b"c", b"t/#"]);
    chunk(4, &[&id]);
    file
}

fn queued(packet_id: u16, state: MosquittoState) -> MosquittoQueued<'static> {
    MosquittoQueued {
        client_id: "c",
        message: StoreId(1),
        packet_id,
        qos: 2,
        retain: false,
        state,
        is_incoming: false,
        properties: &[],
    }
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_an_error_or_ends_between_chunks() {
    let file = file();
    let whole = Database::read(&file).map(|database| database.messages.len());
    let mut good = 0;
    for length in 0..file.len() {
        good += usize::from(Database::read(&file[..length]).is_ok());
    }
    assert_eq!((whole, good), (Ok(1), 6));
}

#[test]
fn a_changed_byte_never_panics() {
    let file = file();
    for at in 0..file.len() {
        for value in [0, 1, 0x7F, 0x80, 0xFF] {
            let mut changed = file.clone();
            changed[at] = value;
            let _ = Database::read(&changed);
        }
    }
}

#[test]
fn other_files_and_other_versions_are_refused() {
    assert_eq!(Database::read(b"hello").err(), Some(NotADatabase::Magic));
    let mut old = file();
    old[22] = 4;
    assert_eq!(Database::read(&old).err(), Some(NotADatabase::Version(4)));
}

#[test]
fn messages_in_flight_keep_their_packet_identifiers_across_the_end_of_the_circle() {
    let ids = [65_534, 65_535, 1, 3];
    let all: Vec<MosquittoQueued<'_>> = ids
        .iter()
        .map(|id| queued(*id, MosquittoState::Underway))
        .chain([queued(0, MosquittoState::Queued), queued(0, MosquittoState::Queued)])
        .collect();
    let queue = ImportedQueue::new(&all.iter().collect::<Vec<_>>());
    let seqs: Vec<u64> = queue.entries.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(seqs, [65_534, 65_535, 65_536, 65_538, 65_539, 65_540]);
    assert_eq!((queue.started, queue.next_seq), (65_538, 65_541));
}

#[test]
fn a_queue_of_nothing_begins_with_one() {
    let queue = ImportedQueue::new(&[]);
    assert_eq!((queue.entries.len(), queue.started, queue.next_seq), (0, 0, 1));
}
