//! Filters with wildcards: a trie over interned levels.
//!
//! The text of a level is stored once, whatever the number of filters that contain it, and is looked up once per level
//! of a topic. A node finds its child for a level in one hash table over (node, symbol); its `+` and `#` children are
//! stored in the node itself. A `+` that ends a filter and has no children, and every `#`, is stored as the list's id
//! instead of a node. Matching descends level by level with the set of reached nodes, so its cost is the number of
//! visited nodes, and depth needs no stack.
//!
//! Invariants: every node but the root leads to a list; the tag of a symbol counts the nodes that it names; a `+` node
//! with neither children nor `#` nor `+` below it is folded into its parent.

use std::cell::Cell;

use foldhash::quality::RandomState;

use super::lists::Lists;
use super::slab::{Slab, SlabSlot};
use super::texts::{TextId, Texts};
use super::{ListId, ListLocation, levels};
use crate::id_table::{IdMap, hash_text, raw_ids};

pub(super) struct Trie {
    nodes: Slab<NodeId, TrieNode>,
    children: IdMap<NodeId>,
    symbols: Texts,
    symbol_ids: IdMap<TextId>,
    hashing: RandomState,
    child_seed: u64,
    reached: Cell<ReachedNodes>,
}

/// Id of a node. Valid until the node is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeId(u32);

raw_ids!(NodeId);

/// `hash` and `list` are `NO_LIST` without a list.
struct TrieNode {
    parent: NodeId,
    symbol: TextId,
    plus: Plus,
    hash: ListId,
    list: ListId,
    children: u32,
}

/// The `+` child: none, the list of a filter that ends here, or a node. Ids do not use the highest bit.
#[derive(Clone, Copy, PartialEq)]
struct Plus(u32);

enum PlusChild {
    None,
    Leaf(ListId),
    Node(NodeId),
}

/// The nodes reached at the current level and at the next.
#[derive(Default)]
struct ReachedNodes {
    here: Vec<NodeId>,
    below: Vec<NodeId>,
}

const ROOT: NodeId = NodeId(0);
const NO_NODE: NodeId = NodeId(u32::MAX);
const NO_LIST: ListId = ListId(u32::MAX);
/// Symbols that are not texts.
const PLUS: TextId = TextId(u32::MAX);
const VACANT: TextId = TextId(u32::MAX - 1);
const OF_ROOT: TextId = TextId(u32::MAX - 2);
/// A scratch buffer that has grown past this is freed.
const REACHED_MAX: usize = 4096;

impl Trie {
    pub(super) fn new() -> Self {
        let mut nodes = Slab::new();
        let root = nodes.insert(TrieNode::new(NO_NODE, OF_ROOT));
        debug_assert_eq!(root, ROOT);
        let hashing = RandomState::default();
        Self {
            nodes,
            children: IdMap::new(),
            symbols: Texts::default(),
            symbol_ids: IdMap::new(),
            child_seed: hash_text(&hashing, b"children"),
            hashing,
            reached: Cell::default(),
        }
    }

    pub(super) fn find(&self, filter: &str) -> Option<ListId> {
        let mut node = ROOT;
        for (level, is_last) in levels(filter) {
            match level {
                b"#" if is_last => return list_id(self.nodes.get(node).hash),
                b"+" => match self.nodes.get(node).plus.child() {
                    PlusChild::None => return None,
                    PlusChild::Leaf(list) => return is_last.then_some(list),
                    PlusChild::Node(child) => node = child,
                },
                _ => node = self.child(node, self.symbol(level)?)?,
            }
        }
        list_id(self.nodes.get(node).list)
    }

    /// Pushes the list of every filter that matches.
    pub(super) fn matching(&self, topic: &str, out: &mut Vec<ListId>) {
        let mut reached = self.reached.take();
        reached.here.push(ROOT);
        // A leading wildcard does not match topics that start with $ [MQTT-4.7.2-1].
        let mut is_wildcard_barred = topic.starts_with('$');
        for (level, is_last) in levels(topic) {
            self.descend(&mut reached, level, is_last, is_wildcard_barred, out);
            is_wildcard_barred = false;
            if reached.here.is_empty() {
                break;
            }
        }
        for node in reached.here.drain(..) {
            let node = self.nodes.get(node);
            // "a/#" matches "a" as well.
            out.extend([node.list, node.hash].into_iter().filter_map(list_id));
        }
        if reached.here.capacity() + reached.below.capacity() <= 2 * REACHED_MAX {
            self.reached.set(reached);
        }
    }

    fn descend(&self, reached: &mut ReachedNodes, level: &[u8], is_last: bool, is_barred: bool, out: &mut Vec<ListId>) {
        let ReachedNodes { here, below } = reached;
        let mut symbol = Symbol::Unknown;
        for node_id in here.drain(..) {
            let node = self.nodes.get(node_id);
            if !is_barred {
                out.extend(list_id(node.hash));
                match node.plus.child() {
                    PlusChild::Node(child) => below.push(child),
                    PlusChild::Leaf(list) if is_last => out.push(list),
                    PlusChild::Leaf(_) | PlusChild::None => {}
                }
            }
            if node.children > 0 {
                let symbol = symbol.get_or_find(|| self.symbol(level));
                below.extend(symbol.and_then(|symbol| self.child(node_id, symbol)));
            }
        }
        std::mem::swap(here, below);
    }

    /// Creates the nodes of a filter. Returns the place of its list.
    pub(super) fn make_place<T: Copy>(&mut self, filter: &str, lists: &mut Lists<T>) -> ListLocation {
        let mut node = ROOT;
        for (level, is_last) in levels(filter) {
            match level {
                b"#" if is_last => return ListLocation::Hash(node),
                b"+" => match self.nodes.get(node).plus.child() {
                    PlusChild::Node(child) => node = child,
                    PlusChild::Leaf(_) | PlusChild::None if is_last => return ListLocation::Plus(node),
                    PlusChild::Leaf(list) => node = self.unfold(node, list, lists),
                    PlusChild::None => node = self.add_plus(node),
                },
                _ => node = self.child_or_new(node, level),
            }
        }
        ListLocation::Node(node)
    }

    pub(super) fn list_at(&self, place: ListLocation) -> Option<ListId> {
        match place {
            ListLocation::Node(node) => list_id(self.nodes.get(node).list),
            ListLocation::Hash(node) => list_id(self.nodes.get(node).hash),
            ListLocation::Plus(node) => match self.nodes.get(node).plus.child() {
                PlusChild::Leaf(list) => Some(list),
                PlusChild::Node(_) | PlusChild::None => None,
            },
            ListLocation::Literal(_) => None,
        }
    }

    pub(super) fn attach(&mut self, place: ListLocation, list: ListId) {
        match place {
            ListLocation::Node(node) => self.nodes.get_mut(node).list = list,
            ListLocation::Hash(node) => self.nodes.get_mut(node).hash = list,
            ListLocation::Plus(node) => self.nodes.get_mut(node).plus = Plus::leaf(list),
            ListLocation::Literal(_) => unreachable!("literal filters are not in the trie"),
        }
    }

    /// Removes the list at `place`, and the nodes that led only to it.
    pub(super) fn detach<T: Copy>(&mut self, place: ListLocation, lists: &mut Lists<T>) {
        let node = match place {
            ListLocation::Node(node) => {
                self.nodes.get_mut(node).list = NO_LIST;
                node
            }
            ListLocation::Hash(node) => {
                self.nodes.get_mut(node).hash = NO_LIST;
                node
            }
            ListLocation::Plus(node) => {
                self.nodes.get_mut(node).plus = Plus::NONE;
                node
            }
            ListLocation::Literal(_) => unreachable!("literal filters are not in the trie"),
        };
        self.prune(node, lists);
    }

    /// Appends the filter whose list is at `place`.
    pub(super) fn write_filter(&self, place: ListLocation, filter: &mut String) {
        let (mut node, last) = match place {
            ListLocation::Node(node) => (node, None),
            ListLocation::Hash(node) => (node, Some("#")),
            ListLocation::Plus(node) => (node, Some("+")),
            ListLocation::Literal(_) => unreachable!("literal filters are not in the trie"),
        };
        let mut path: Vec<&str> = last.into_iter().collect();
        while node != ROOT {
            let TrieNode { parent, symbol, .. } = *self.nodes.get(node);
            path.push(if symbol == PLUS { "+" } else { self.symbols.text(symbol) });
            node = parent;
        }
        for (depth, level) in path.iter().rev().enumerate() {
            if depth > 0 {
                filter.push('/');
            }
            filter.push_str(level);
        }
    }

    #[cfg(test)]
    pub(super) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    #[cfg(test)]
    pub(super) fn symbol_page_bytes(&self) -> usize {
        self.symbols.page_bytes()
    }

    fn prune<T: Copy>(&mut self, mut node: NodeId, lists: &mut Lists<T>) {
        while node != ROOT {
            let TrieNode {
                parent,
                symbol,
                plus,
                hash,
                list,
                children,
            } = *self.nodes.get(node);
            if children > 0 || hash != NO_LIST || plus != Plus::NONE {
                return;
            }
            if list != NO_LIST {
                if symbol == PLUS {
                    self.fold(node, parent, list, lists);
                }
                return;
            }
            self.unlink(node, parent, symbol);
            self.nodes.remove(node);
            node = parent;
        }
    }

    fn unlink(&mut self, node: NodeId, parent: NodeId, symbol: TextId) {
        if symbol == PLUS {
            self.nodes.get_mut(parent).plus = Plus::NONE;
            return;
        }
        self.children.remove(self.hash_child(parent, symbol), |id| id == node);
        self.nodes.get_mut(parent).children -= 1;
        self.release_symbol(symbol);
    }

    /// Turns a `+` node that has only a list into a leaf of its parent.
    fn fold<T: Copy>(&mut self, node: NodeId, parent: NodeId, list: ListId, lists: &mut Lists<T>) {
        self.nodes.remove(node);
        self.nodes.get_mut(parent).plus = Plus::leaf(list);
        lists.set_place(list, ListLocation::Plus(parent));
    }

    fn unfold<T: Copy>(&mut self, parent: NodeId, list: ListId, lists: &mut Lists<T>) -> NodeId {
        let node = self.add_plus(parent);
        self.nodes.get_mut(node).list = list;
        lists.set_place(list, ListLocation::Node(node));
        node
    }

    fn add_plus(&mut self, parent: NodeId) -> NodeId {
        let node = self.nodes.insert(TrieNode::new(parent, PLUS));
        self.nodes.get_mut(parent).plus = Plus::node(node);
        node
    }

    fn child_or_new(&mut self, parent: NodeId, level: &[u8]) -> NodeId {
        let known = self.symbol(level);
        if let Some(child) = known.and_then(|symbol| self.child(parent, symbol)) {
            return child;
        }
        let symbol = self.acquire_symbol(level, known);
        let node = self.nodes.insert(TrieNode::new(parent, symbol));
        self.children.insert(self.hash_child(parent, symbol), node);
        self.nodes.get_mut(parent).children += 1;
        node
    }

    fn child(&self, parent: NodeId, symbol: TextId) -> Option<NodeId> {
        self.children.find(self.hash_child(parent, symbol), |id| {
            let node = self.nodes.get(id);
            node.parent == parent && node.symbol == symbol
        })
    }

    fn symbol(&self, level: &[u8]) -> Option<TextId> {
        self.symbol_ids
            .find(hash_text(&self.hashing, level), |id| self.symbols.is_text(id, level))
    }

    fn acquire_symbol(&mut self, level: &[u8], known: Option<TextId>) -> TextId {
        if let Some(symbol) = known {
            self.symbols.set_tag(symbol, self.symbols.tag(symbol) + 1);
            return symbol;
        }
        let symbol = self.symbols.insert(level, 1);
        self.symbol_ids.insert(hash_text(&self.hashing, level), symbol);
        symbol
    }

    fn release_symbol(&mut self, symbol: TextId) {
        let uses = self.symbols.tag(symbol) - 1;
        if uses > 0 {
            self.symbols.set_tag(symbol, uses);
            return;
        }
        let hash = hash_text(&self.hashing, self.symbols.text(symbol).as_bytes());
        self.symbol_ids.remove(hash, |id| id == symbol);
        self.symbols.remove(symbol);
    }

    /// Both numbers are assigned here. The seed prevents clients from constructing filters that collide in the table.
    fn hash_child(&self, parent: NodeId, symbol: TextId) -> u64 {
        let pair = (parent.0 as u64) << 32 | symbol.0 as u64;
        let product = (pair ^ self.child_seed) as u128 * 0x9E37_79B9_7F4A_7C15_u128;
        (product >> 64) as u64 ^ product as u64
    }
}

/// Symbol of a level, looked up when the first node with children needs it.
enum Symbol {
    Unknown,
    Found(Option<TextId>),
}

impl Symbol {
    fn get_or_find(&mut self, find: impl FnOnce() -> Option<TextId>) -> Option<TextId> {
        match *self {
            Symbol::Found(symbol) => symbol,
            Symbol::Unknown => {
                let symbol = find();
                *self = Symbol::Found(symbol);
                symbol
            }
        }
    }
}

impl Plus {
    const NONE: Plus = Plus(u32::MAX);
    const LEAF: u32 = 1 << 31;

    fn leaf(list: ListId) -> Self {
        Plus(Self::LEAF | list.0)
    }

    fn node(node: NodeId) -> Self {
        Plus(node.0)
    }

    fn child(self) -> PlusChild {
        match self.0 {
            _ if self == Plus::NONE => PlusChild::None,
            leaf if leaf & Self::LEAF != 0 => PlusChild::Leaf(ListId(leaf & !Self::LEAF)),
            node => PlusChild::Node(NodeId(node)),
        }
    }
}

impl TrieNode {
    fn new(parent: NodeId, symbol: TextId) -> Self {
        Self {
            parent,
            symbol,
            plus: Plus::NONE,
            hash: NO_LIST,
            list: NO_LIST,
            children: 0,
        }
    }
}

impl SlabSlot for TrieNode {
    fn vacant(next: u32) -> Self {
        Self::new(NodeId(next), VACANT)
    }

    fn next_vacant(&self) -> Option<u32> {
        (self.symbol == VACANT).then_some(self.parent.0)
    }
}

fn list_id(list: ListId) -> Option<ListId> {
    (list != NO_LIST).then_some(list)
}
