//! A chain that is changed while a message waits after one of its nodes.

use super::*;

/// Changes the stored root chain.
fn change(world: &World, change: impl FnOnce(&mut Json)) {
    let entities = world.platform.entities();
    let root = entities.root_chain(world.tenant).unwrap().unwrap();
    let (id, mut metadata) = (root.id.unwrap(), root.metadata.unwrap());
    change(&mut metadata);
    entities.save_rule_chain_metadata(id, metadata, NOW).unwrap();
    world.platform.reload_chain(id, NOW).unwrap();
}

#[test]
fn answer_continues_after_its_own_node_or_fails() {
    let changes: [fn(&mut Json); 2] = [
        |metadata| metadata["nodes"].as_array_mut().unwrap().swap(2, 3),
        |metadata| *metadata = json!({"firstNodeIndex": null, "nodes": [], "connections": []}),
    ];
    for queue in [None, Some("HighPriority")] {
        for (index, to_change) in changes.into_iter().enumerate() {
            let mut world = World::new(queue);
            world.other.is_slow = true;
            world.publish(0, 0, &[1]);
            change(&world, to_change);
            world.answer_first(1, Ok(ExternalAnswer::default()));
            let expected = "other failed: the rule chain was changed while the message waited";
            assert_eq!(world.other.take(), [expected], "{queue:?} {index}");
            world.tick(10);
            assert_eq!(world.stored(0), longs(&[]), "{queue:?} {index}");
            let stats = world.platform.stats();
            assert_eq!((stats.failed_messages_total, stats.waiting_retries), (1, 0));
        }
    }
}

#[test]
fn answer_continues_after_an_unrelated_change() {
    let mut world = World::new(None);
    world.other.is_slow = true;
    world.publish(0, 0, &[1]);
    change(&world, |metadata| metadata["nodes"][1]["name"] = json!("another name"));
    world.answer_first(1, Ok(ExternalAnswer::default()));
    world.tick(2);
    assert_eq!(world.stored(0), longs(&[1]));
}
