//! Compares the packed queue with a plain one.

use mqtt::QoS;
use proptest::prelude::*;

use super::*;

fn entry(seq: Seq, position: u64) -> TaggedEntry {
    let entry = StoredEntry::of(RecordPosition(position), seq, QoS::AtLeastOnce, false);
    (entry.sized(MessageSize::of(150)), DeliveryTag::None)
}

fn bytes(list: &EntryList) -> usize {
    list.chunks().map(<[u8]>::len).sum()
}

#[test]
fn ten_scattered_messages_take_less_than_64_bytes() {
    let mut list = EntryList::default();
    assert_eq!(size_of::<EntryList>(), 24);
    for n in 1..=10 {
        list.extend([entry(n, 3_000_000_000 + n * 15_000_000)]);
    }
    assert!(list.rest.is_none() && bytes(&list) <= 58, "{} bytes", bytes(&list));
}

#[test]
fn consecutive_messages_take_two_or_three_bytes_each() {
    let mut list = EntryList::default();
    list.extend((1..=100_000).map(|n| entry(n, 3_000_000_000 + n * 150)));
    assert_eq!(list.len(), 100_000);
    assert!(bytes(&list) < 230_000, "{} bytes", bytes(&list));
}

#[test]
fn sizes_that_differ_take_two_more_bytes() {
    let mut list = EntryList::default();
    list.extend((1..=64_000).map(|n| {
        let (entry, tag) = entry(n, 3_000_000_000 + n * 150);
        (entry.sized(MessageSize::of(100 << (n % 2))), tag)
    }));
    assert!(bytes(&list) < 64_000 * 45 / 10, "{} bytes", bytes(&list));
    assert_eq!(
        list.bytes(),
        32_000 * (MessageSize::of(100).bytes() + MessageSize::of(200).bytes())
    );
}

/// A page of record version 2: two entries, the second of them tagged.
#[test]
fn pages_without_sizes_are_read() {
    let packed = [2, 20 << 1, 4 << 2 | 1, 1 | 1 << 4, 1 << 1, 7];
    let items = PackedEntries(&packed).items().unwrap();
    let positions: Vec<u64> = items.iter().map(|(entry, _)| entry.message().0).collect();
    assert_eq!(positions, [10, 14]);
    assert!(items.iter().all(|(entry, _)| entry.size() == MessageSize::UNKNOWN));
    assert_eq!(items[1].1, DeliveryTag::Identifier(7));
}

#[derive(Clone, Debug)]
enum EntryListStep {
    Extend(Vec<(u8, u32, u8)>),
    Prepend(usize),
    Take(usize),
    Move(u64),
}

fn step() -> impl Strategy<Value = EntryListStep> {
    prop_oneof![
        prop::collection::vec((0..3u8, any::<u32>(), 0..=255u8), 0..200).prop_map(EntryListStep::Extend),
        (0..100usize).prop_map(EntryListStep::Prepend),
        (0..300usize).prop_map(EntryListStep::Take),
        (1..9u64).prop_map(EntryListStep::Move),
    ]
}

fn tag_of(kind: u8) -> DeliveryTag {
    let group = GroupRef {
        shard: ShardId(3),
        index: GroupIndex(70_000),
        epoch: GroupEpoch(u32::MAX),
        key: GroupKey(u64::MAX),
    };
    match kind {
        0..100 => DeliveryTag::None,
        100..200 => DeliveryTag::Identifier(u32::from(kind / 50)),
        200..230 => DeliveryTag::new(&[1, 268_435_455], None),
        _ => DeliveryTag::new(&[], Some(group)),
    }
}

fn item(seq: Seq, qos: u8, position: u32, kind: u8) -> TaggedEntry {
    if qos == 2 && kind.is_multiple_of(5) {
        return (StoredEntry::released(seq), DeliveryTag::None);
    }
    let qos = QoS::from_bits(qos).unwrap();
    let tag = tag_of(kind);
    let entry = StoredEntry::of(
        RecordPosition(u64::from(position) << (kind % 24)),
        seq,
        qos,
        kind.is_multiple_of(7),
    );
    let entry = entry.sized(MessageSize(kind % 3));
    (entry.tagged(!matches!(tag, DeliveryTag::None)), tag)
}

proptest! {
    #[test]
    fn behaves_like_a_plain_list(steps in prop::collection::vec(step(), 1..30)) {
        let (mut list, mut model) = (EntryList::default(), VecDeque::<TaggedEntry>::new());
        let (mut first, mut next) = (1_000_000, 1_000_000);
        for step in steps {
            match step {
                EntryListStep::Extend(items) => {
                    let items: Vec<TaggedEntry> = items.into_iter().map(|(qos, position, kind)| {
                        next += 1 + Seq::from(kind.is_multiple_of(11)) * 300;
                        item(next, qos, position, kind)
                    }).collect();
                    model.extend(items.clone());
                    list.extend(items);
                }
                EntryListStep::Prepend(count) => {
                    let items: Vec<TaggedEntry> = (first - count as u64..first).map(|seq| entry(seq, seq)).collect();
                    first -= count as u64;
                    items.iter().rev().for_each(|item| model.push_front(item.clone()));
                    list.prepend(items);
                }
                EntryListStep::Take(count) => {
                    let mut left = count;
                    let taken = list.take_while(|_| { left = left.saturating_sub(1); left > 0 });
                    let wanted: Vec<TaggedEntry> = model.drain(..count.saturating_sub(1).min(model.len())).collect();
                    prop_assert_eq!(taken, wanted);
                }
                EntryListStep::Move(modulus) => {
                    let change = |entry: &mut StoredEntry| {
                        let is_meant = !entry.is_released() && entry.seq().is_multiple_of(modulus);
                        if is_meant { entry.move_to(RecordPosition(entry.message().0 + 1_000_000)) }
                        is_meant
                    };
                    let wanted: Vec<TaggedEntry> = model.iter_mut().filter_map(|(entry, tag)| change(entry).then(|| (*entry, tag.clone()))).collect();
                    prop_assert_eq!(list.change(change), wanted);
                }
            }
            prop_assert_eq!(list.len(), model.len());
            prop_assert_eq!(list.front(), model.front().map(|(entry, _)| *entry));
            prop_assert_eq!(list.back(), model.back().map(|(entry, _)| *entry));
            prop_assert!(list.iter().eq(model.iter().cloned()));
            let behind = model.get(model.len() / 2).map_or(0, |(entry, _)| entry.seq());
            prop_assert!(list.iter_behind(behind).eq(model.iter().filter(|(entry, _)| entry.seq() > behind).cloned()));
            prop_assert!(list.chunks().all(|chunk| !chunk.is_empty() && count(chunk) <= usize::from(CHUNK_MAX)));
        }
    }
}
