//! The contract of every repository. One function per guarantee over `&dyn Repository`, which is empty at its start.
//! A new implementation calls [`run`] with its own.

use platform::ids::{AlarmId, DeviceId, EntityId, EntityType, IdMaker, TenantId, Uuid};
use platform::model::{
    Alarm, AlarmSeverity, AlarmStatus, Attribute, AttributeScope, CredentialsType, Device, DeviceCredentials, Entity,
    Relation, RelationGroup,
};
use platform::repository::{
    AlarmSelection, EntityRecord, RelationSelection, Repository, RepositoryChange, RepositoryError, Selection,
    StateKind, UniqueConstraint,
};
use platform::{PageLink, Sort, SortDirection};
use timeseries::PointValue;

type Guarantee = (&'static str, fn(&dyn Repository));

const GUARANTEES: &[Guarantee] = &[
    ("a stored entity is found by each identifier", found_again),
    ("a put replaces", replaces),
    ("names are unique per tenant and type", unique_names),
    ("keys are unique per type", unique_keys),
    ("all changes are applied or none", all_or_none),
    ("an old version is rejected", versions),
    ("pages are complete and do not overlap", pages),
    ("lists are searched and sorted", searched_and_sorted),
    ("relations go from and to", relations),
    ("attributes have five types and three scopes", attributes),
    ("an originator has one active alarm of a type", active_alarms),
    ("alarms are selected and propagated", alarm_selections),
    ("states are stored unchanged", states),
    ("parts are stored separately and deleted together", parts),
];

pub fn run<R: Repository>(mut make: impl FnMut() -> R) {
    for (guarantee, check) in GUARANTEES {
        let repository = make();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&repository)));
        assert!(result.is_ok(), "violated: {guarantee}");
    }
}

fn tenant(number: u8) -> TenantId {
    TenantId(Uuid([number; 16]))
}

fn device(ids: &IdMaker, now_ms: i64, name: &str) -> Device {
    let mut device = Device {
        tenant_id: tenant(1),
        name: name.to_owned(),
        kind: "meter".to_owned(),
        ..Device::default()
    };
    device.stamp(ids.next(now_ms), 1);
    device
}

fn put<E: Entity>(entity: &E) -> RepositoryChange {
    RepositoryChange::Put {
        record: EntityRecord::of(entity, entity.version().unwrap_or(1)).unwrap(),
        replaces: None,
    }
}

fn ids() -> IdMaker {
    IdMaker::new([3; 8])
}

fn found_again(repository: &dyn Repository) {
    let device = device(&ids(), 5_000, "D");
    let id = device.id.unwrap();
    repository.apply(&[put(&device)]).unwrap();
    let record = repository.get(id.entity()).unwrap().unwrap();
    assert_eq!(record.read::<Device>().unwrap(), device);
    assert_eq!(record.row, device.row());
    let by_name = repository.find_by_name(EntityType::Device, tenant(1).0, "D").unwrap();
    assert_eq!(by_name, Some(record));
    assert_eq!(
        repository.find_by_name(EntityType::Device, tenant(2).0, "D").unwrap(),
        None
    );
    assert_eq!(
        repository.find_by_name(EntityType::Asset, tenant(1).0, "D").unwrap(),
        None
    );
    repository
        .apply(&[
            RepositoryChange::Delete(id.entity()),
            RepositoryChange::Delete(id.entity()),
        ])
        .unwrap();
    assert_eq!(repository.get(id.entity()).unwrap(), None);
}

fn replaces(repository: &dyn Repository) {
    let mut device = device(&ids(), 5_000, "D");
    repository.apply(&[put(&device)]).unwrap();
    device.name = "E".to_owned();
    device.label = Some("label".to_owned());
    repository.apply(&[put(&device)]).unwrap();
    assert_eq!(repository.count(EntityType::Device, &Selection::default()).unwrap(), 1);
    assert!(
        repository
            .find_by_name(EntityType::Device, tenant(1).0, "D")
            .unwrap()
            .is_none()
    );
    let record = repository.get(device.id.unwrap().entity()).unwrap().unwrap();
    assert_eq!(record.row.label, "label");
}

fn unique_names(repository: &dyn Repository) {
    let ids = ids();
    repository.apply(&[put(&device(&ids, 1, "D"))]).unwrap();
    let error = repository.apply(&[put(&device(&ids, 2, "D"))]).unwrap_err();
    assert!(
        matches!(
            error,
            RepositoryError::Unique {
                kind: EntityType::Device,
                constraint: UniqueConstraint::Name
            }
        ),
        "{error}"
    );
    let elsewhere = Device {
        tenant_id: tenant(2),
        ..device(&ids, 3, "D")
    };
    repository.apply(&[put(&elsewhere)]).unwrap();
}

fn credentials(ids: &IdMaker, token: &str) -> DeviceCredentials {
    let mut credentials = DeviceCredentials {
        device_id: DeviceId(Uuid([9; 16])),
        credentials_type: CredentialsType::AccessToken,
        credentials_id: Some(token.to_owned()),
        ..DeviceCredentials::default()
    };
    credentials.stamp(ids.next(1), 1);
    credentials
}

fn unique_keys(repository: &dyn Repository) {
    let ids = ids();
    let first = credentials(&ids, "TOKEN");
    repository.apply(&[put(&first)]).unwrap();
    let error = repository.apply(&[put(&credentials(&ids, "TOKEN"))]).unwrap_err();
    let kind = EntityType::DeviceCredentials;
    assert!(
        matches!(
            error,
            RepositoryError::Unique {
                constraint: UniqueConstraint::Key,
                ..
            }
        ),
        "{error}"
    );
    let found = repository.find_by_key(kind, "TOKEN").unwrap().unwrap();
    assert_eq!(found.read::<DeviceCredentials>().unwrap(), first);
    assert_eq!(repository.find_by_key(kind, "token").unwrap(), None);
    // The same entity may keep its key.
    repository.apply(&[put(&first)]).unwrap();
}

fn all_or_none(repository: &dyn Repository) {
    let ids = ids();
    let changes = [
        put(&device(&ids, 1, "A")),
        put(&device(&ids, 2, "B")),
        put(&device(&ids, 3, "A")),
    ];
    repository.apply(&changes).unwrap_err();
    assert_eq!(repository.count(EntityType::Device, &Selection::default()).unwrap(), 0);
}

fn versions(repository: &dyn Repository) {
    let device = device(&ids(), 1, "D");
    repository.apply(&[put(&device)]).unwrap();
    let change = |replaces: i64| RepositoryChange::Put {
        record: EntityRecord::of(&device, 2).unwrap(),
        replaces: Some(replaces),
    };
    repository.apply(&[change(1)]).unwrap();
    let error = repository.apply(&[change(1)]).unwrap_err();
    assert!(
        matches!(
            error,
            RepositoryError::Version {
                kind: EntityType::Device,
                ..
            }
        ),
        "{error}"
    );
}

fn names(repository: &dyn Repository, selection: &Selection, link: &PageLink) -> Vec<String> {
    let page = repository.page(EntityType::Device, selection, link).unwrap();
    page.data.into_iter().map(|record| record.row.name).collect()
}

fn pages(repository: &dyn Repository) {
    let ids = ids();
    let changes: Vec<RepositoryChange> = (0..25)
        .map(|number| put(&device(&ids, number, &format!("D{number:02}"))))
        .collect();
    repository.apply(&changes).unwrap();
    let mut seen = Vec::new();
    for number in 0..3 {
        let link = PageLink::new(10, number);
        let page = repository
            .page(EntityType::Device, &Selection::default(), &link)
            .unwrap();
        assert_eq!(
            (page.total_elements, page.total_pages, page.has_next),
            (25, 3, number < 2)
        );
        seen.extend(page.data.into_iter().map(|record| record.row.name));
    }
    let expected: Vec<String> = (0..25).map(|number| format!("D{number:02}")).collect();
    assert_eq!(seen, expected);
    let mut visited = Vec::new();
    repository
        .for_each(EntityType::Device, &mut |record| visited.push(record.row.name))
        .unwrap();
    assert_eq!(visited, expected);
    assert!(names(repository, &Selection::default(), &PageLink::new(10, 9)).is_empty());
}

fn searched_and_sorted(repository: &dyn Repository) {
    let ids = ids();
    let (first, second) = (device(&ids, 1, "b"), device(&ids, 2, "A"));
    let mut labelled = device(&ids, 3, "c");
    labelled.label = Some("Kitchen 100%".to_owned());
    labelled.device_profile_id = Some(platform::ids::DeviceProfileId(Uuid([7; 16])));
    let all = [first, second, labelled];
    repository.apply(&all.each_ref().map(put)).unwrap();
    let sorted = |property: &str, order| PageLink {
        sort: Some(Sort {
            property: property.to_owned(),
            order,
        }),
        ..PageLink::new(10, 0)
    };
    let everything = Selection::default();
    assert_eq!(
        names(repository, &everything, &sorted("name", SortDirection::Ascending)),
        ["A", "b", "c"]
    );
    assert_eq!(
        names(
            repository,
            &everything,
            &sorted("createdTime", SortDirection::Descending)
        ),
        ["c", "A", "b"]
    );
    assert_eq!(
        names(repository, &everything, &sorted("label", SortDirection::Descending))[0],
        "c"
    );
    let search = |text: &str| PageLink {
        text_search: Some(text.to_owned()),
        ..PageLink::new(10, 0)
    };
    assert_eq!(names(repository, &everything, &search("KITCHEN")), ["c"]);
    assert_eq!(names(repository, &everything, &search("METER")).len(), 3);
    assert_eq!(names(repository, &everything, &search("0%")), ["c"]);
    assert!(names(repository, &everything, &search("_")).is_empty());
    let of_parent = Selection {
        parent: Some(Uuid([7; 16])),
        ..Selection::default()
    };
    assert_eq!(names(repository, &of_parent, &PageLink::new(10, 0)), ["c"]);
    let of_type = Selection {
        tenant: Some(tenant(1).0),
        subtype: Some("other".to_owned()),
        ..Selection::default()
    };
    assert_eq!(repository.count(EntityType::Device, &of_type).unwrap(), 0);
}

fn relations(repository: &dyn Repository) {
    let entity = |number: u8| EntityId::new(EntityType::Asset, Uuid([number; 16]));
    let relation = |from: u8, to: u8, kind: &str| Relation {
        from: entity(from),
        to: entity(to),
        kind: kind.to_owned(),
        group: RelationGroup::Common,
        additional_info: None,
    };
    let all = [
        relation(1, 2, "Contains"),
        relation(1, 3, "Contains"),
        relation(2, 3, "Manages"),
    ];
    repository
        .apply(
            &all.each_ref()
                .map(|relation| RepositoryChange::PutRelation(relation.clone())),
        )
        .unwrap();
    let find = |from: Option<u8>, to: Option<u8>, kind: Option<&str>| {
        let selection = RelationSelection {
            from: from.map(entity),
            to: to.map(entity),
            kind: kind.map(str::to_owned),
            group: Some(RelationGroup::Common),
        };
        repository.relations(&selection).unwrap()
    };
    assert_eq!(find(Some(1), None, None), all[..2]);
    assert_eq!(find(None, Some(3), Some("Manages")), all[2..]);
    repository
        .apply(&[RepositoryChange::DeleteRelation(all[0].clone())])
        .unwrap();
    assert_eq!(find(Some(1), None, None), all[1..2]);
    repository
        .apply(&[RepositoryChange::DeleteRelationsOf(entity(3))])
        .unwrap();
    assert!(find(None, None, None).is_empty());
}

fn attributes(repository: &dyn Repository) {
    let entity = Uuid([4; 16]);
    let values = [
        ("a", PointValue::Bool(true)),
        ("b", PointValue::Long(i64::MIN)),
        ("c", PointValue::Double(0.1)),
        ("d", PointValue::String("text".into())),
        ("e", PointValue::Json(r#"{"k":[]}"#.into())),
    ];
    let all: Vec<Attribute> = values
        .into_iter()
        .map(|(key, value)| Attribute {
            key: key.to_owned(),
            value,
            last_update_ms: 7,
        })
        .collect();
    let changes: Vec<RepositoryChange> = all
        .iter()
        .map(|attribute| RepositoryChange::PutAttribute {
            entity,
            scope: AttributeScope::SharedScope,
            attribute: attribute.clone(),
        })
        .collect();
    repository.apply(&changes).unwrap();
    let read = |scope, keys: Option<&[&str]>| repository.attributes(entity, scope, keys).unwrap();
    assert_eq!(read(AttributeScope::SharedScope, None), all);
    assert_eq!(
        read(AttributeScope::SharedScope, Some(&["e", "x", "a", "a"])),
        [all[0].clone(), all[4].clone()]
    );
    assert!(read(AttributeScope::ClientScope, None).is_empty());
    let delete = RepositoryChange::DeleteAttribute {
        entity,
        scope: AttributeScope::SharedScope,
        key: "a".to_owned(),
    };
    repository.apply(&[delete]).unwrap();
    assert_eq!(read(AttributeScope::SharedScope, None), all[1..]);
    repository
        .apply(&[RepositoryChange::DeleteAttributesOf(entity)])
        .unwrap();
    assert!(read(AttributeScope::SharedScope, None).is_empty());
}

fn alarm(ids: &IdMaker, now_ms: i64, originator: u8, severity: AlarmSeverity) -> Alarm {
    let originator = EntityId::new(EntityType::Device, Uuid([originator; 16]));
    let mut alarm = Alarm::new(tenant(1), originator, "hot", severity);
    alarm.id = Some(AlarmId(ids.next(now_ms)));
    alarm.created_time = now_ms;
    alarm
}

fn put_alarm(alarm: &Alarm, propagated_to: &[Uuid]) -> RepositoryChange {
    RepositoryChange::PutAlarm {
        alarm: alarm.clone(),
        propagated_to: propagated_to.to_vec(),
    }
}

fn active_alarms(repository: &dyn Repository) {
    let ids = ids();
    let mut first = alarm(&ids, 1, 5, AlarmSeverity::Major);
    repository.apply(&[put_alarm(&first, &[])]).unwrap();
    let second = alarm(&ids, 2, 5, AlarmSeverity::Minor);
    let error = repository.apply(&[put_alarm(&second, &[])]).unwrap_err();
    assert!(
        matches!(
            error,
            RepositoryError::Unique {
                constraint: UniqueConstraint::ActiveAlarm,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(
        repository.active_alarm(Uuid([5; 16]), "hot").unwrap().unwrap().id,
        first.id
    );
    first.cleared = true;
    repository
        .apply(&[put_alarm(&first, &[]), put_alarm(&second, &[])])
        .unwrap();
    assert_eq!(
        repository.active_alarm(Uuid([5; 16]), "hot").unwrap().unwrap().id,
        second.id
    );
    assert!(repository.active_alarm(Uuid([5; 16]), "cold").unwrap().is_none());
    assert_eq!(
        repository.alarm(first.id.unwrap()).unwrap().unwrap().status(),
        AlarmStatus::ClearedUnack
    );
}

fn alarm_selections(repository: &dyn Repository) {
    let ids = ids();
    let asset = Uuid([8; 16]);
    let mut old = alarm(&ids, 1_000, 1, AlarmSeverity::Critical);
    (old.cleared, old.acknowledged) = (true, true);
    let new = alarm(&ids, 2_000, 2, AlarmSeverity::Minor);
    repository
        .apply(&[put_alarm(&old, &[]), put_alarm(&new, &[asset])])
        .unwrap();
    let find = |selection: AlarmSelection| -> Vec<i64> {
        let page = repository.alarms(&selection, &PageLink::new(10, 0)).unwrap();
        page.data.into_iter().map(|alarm| alarm.created_time).collect()
    };
    let any = AlarmSelection::default;
    assert_eq!(find(any()), [2_000, 1_000]);
    assert_eq!(
        find(AlarmSelection {
            entity: Some(asset),
            ..any()
        }),
        [2_000]
    );
    assert_eq!(
        find(AlarmSelection {
            entity: Some(Uuid([1; 16])),
            ..any()
        }),
        [1_000]
    );
    let of = |entities: &[Uuid], selection: AlarmSelection, link: PageLink| {
        let page = repository.alarms_of(entities, &selection, &link).unwrap();
        let shown = page.data.into_iter();
        let shown: Vec<(Uuid, i64)> = shown.map(|(entity, alarm)| (entity, alarm.created_time)).collect();
        (shown, page.total_elements)
    };
    let (first, second) = (Uuid([1; 16]), Uuid([2; 16]));
    assert_eq!(
        of(&[asset, first, second], any(), PageLink::new(10, 0)),
        (vec![(second, 2_000), (asset, 2_000), (first, 1_000)], 3),
        "once per entity that shows it, the newest first"
    );
    assert_eq!(
        of(&[asset, first, second], any(), PageLink::new(1, 2)),
        (vec![(first, 1_000)], 3)
    );
    assert_eq!(of(&[], any(), PageLink::new(10, 0)), (Vec::new(), 0));
    let minor = AlarmSelection {
        severities: vec![AlarmSeverity::Minor],
        ..any()
    };
    assert_eq!(
        of(&[asset, first], minor, PageLink::new(10, 0)),
        (vec![(asset, 2_000)], 1)
    );
    assert_eq!(
        find(AlarmSelection {
            statuses: vec![AlarmStatus::ClearedAck],
            ..any()
        }),
        [1_000]
    );
    assert_eq!(
        find(AlarmSelection {
            severities: vec![AlarmSeverity::Minor],
            ..any()
        }),
        [2_000]
    );
    assert_eq!(
        find(AlarmSelection {
            types: vec!["cold".to_owned()],
            ..any()
        }),
        [0; 0]
    );
    assert_eq!(
        find(AlarmSelection {
            created: Some(0..2_000),
            ..any()
        }),
        [1_000]
    );
    assert_eq!(
        find(AlarmSelection {
            tenant: Some(tenant(2).0),
            ..any()
        }),
        [0; 0]
    );
    assert_eq!(repository.alarm_types(tenant(1).0).unwrap(), ["hot"]);
    repository
        .apply(&[RepositoryChange::DeleteAlarm(new.id.unwrap())])
        .unwrap();
    assert_eq!(
        find(AlarmSelection {
            entity: Some(asset),
            ..any()
        }),
        [0; 0]
    );
    repository
        .apply(&[RepositoryChange::DeleteAlarmsOf(Uuid([1; 16]))])
        .unwrap();
    assert_eq!(find(any()), [0; 0]);
}

fn parts(repository: &dyn Repository) {
    let (one, other) = (Uuid([1; 16]), Uuid([2; 16]));
    let put = |of, number, bytes: &[u8]| RepositoryChange::PutPart {
        owner: of,
        number,
        bytes: bytes.to_vec(),
    };
    let all = [
        put(one, 0, b"a"),
        put(one, 1, b""),
        put(other, 0, b"c"),
        put(one, 0, b"A"),
    ];
    repository.apply(&all).unwrap();
    let part = |of, number| repository.part(of, number).unwrap();
    assert_eq!(part(one, 0).as_deref(), Some(&b"A"[..]));
    assert_eq!((part(one, 1), part(one, 2)), (Some(Vec::new()), None));
    repository.apply(&[RepositoryChange::DeleteParts(one)]).unwrap();
    assert_eq!((part(one, 0), part(one, 1)), (None, None));
    assert_eq!(part(other, 0).as_deref(), Some(&b"c"[..]));
}

fn states(repository: &dyn Repository) {
    let id = Uuid([6; 16]);
    let put = |state, bytes: Option<&[u8]>| RepositoryChange::PutState {
        state,
        id,
        bytes: bytes.map(<[u8]>::to_vec),
    };
    repository
        .apply(&[
            put(StateKind::AlarmRules, Some(b"a")),
            put(StateKind::Usage, Some(b"u")),
        ])
        .unwrap();
    repository.apply(&[put(StateKind::AlarmRules, Some(b"b"))]).unwrap();
    assert_eq!(
        repository.state(StateKind::AlarmRules, id).unwrap().as_deref(),
        Some(&b"b"[..])
    );
    let mut seen = Vec::new();
    repository
        .for_each_state(StateKind::Usage, &mut |id, bytes| seen.push((id, bytes.to_vec())))
        .unwrap();
    assert_eq!(seen, [(id, b"u".to_vec())]);
    repository.apply(&[put(StateKind::AlarmRules, None)]).unwrap();
    assert_eq!(repository.state(StateKind::AlarmRules, id).unwrap(), None);
}
