//! Indexes of the catalog's entities, keys and series, and of the heads in memory.

/// Index of an entity in the catalog. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct EntityIndex(pub u32);

/// Index of a key in the catalog. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct KeyIndex(pub u32);

/// Index of a series in the catalog. Never reused, because segments refer to series by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SeriesIndex(pub u32);

/// Index of a series' head among the heads in memory. Valid until they are frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadSlot(pub u32);

impl EntityIndex {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl KeyIndex {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl SeriesIndex {
    /// End of a list of series.
    pub const NONE: SeriesIndex = SeriesIndex(u32::MAX);

    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl HeadSlot {
    /// The series has no head in memory.
    pub const NONE: HeadSlot = HeadSlot(u32::MAX);

    pub fn index(self) -> usize {
        self.0 as usize
    }
}
