"""Small files in the formats of the packages that prompts are made from."""

import pytest

NEWS = "The mayor of Springfield said on Monday that the bridge is safe. Engineers from Boston agreed. It opens soon.\n"
GERMAN = """Wer zuletzt lacht, lacht am besten, sagt man.
\t\t-- Sprichwort
%
Zu kurz
%
Ein zweiter Satz, der lang genug
ist.
"""
DATA = """  1 This is a licence of several lines
02084071 05 n 03 dog 0 domestic_dog 0 Canis_familiaris 0 001 @ 02083346 n 0000 | a member of the genus Canis
03001627 06 n 01 chair 0 001 @ 04161981 n 0000 | a seat for one person
02084732 05 n 01 pooch 0 001 @ 02084071 n 0000 | informal terms for dogs
10954498 18 n 02 Einstein 0 Albert_Einstein 0 001 @i 10428004 n 0000 | physicist born in Germany
10951459 18 n 01 Plato 0 001 @i 10423589 n 0000 | ancient Athenian philosopher
10954499 18 n 02 Curie 0 Marie_Curie 0 001 @i 10428004 n 0000 | French chemist (born in Poland)
08691669 15 n 01 Marrakesh 0 001 @i 08524735 n 0000 | a city in Morocco
08691670 15 n 02 New_York 0 001 @i 08524735 n 0000 | a city
00001930 03 n 01 physical_entity 0 001 @ 00001740 n 0000 | an entity that has physical existence
"""
INDEX = """  1 This is a licence of several lines
chair n 2 3 @ ~ #p 2 1 03001627 00599992
dog n 1 3 @ ~ #m 1 1 02084071
physical_entity n 1 2 @ ~ 1 1 00001930
pooch n 1 1 @ 1 0 02084732
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "wordnet").mkdir()
    (tmp_path / "wordnet" / "data.noun").write_text(DATA)
    (tmp_path / "wordnet" / "index.noun").write_text(INDEX)
    (tmp_path / "news").write_text(NEWS * 3)
    (tmp_path / "german").write_text(GERMAN)
    return tmp_path / "news", tmp_path / "german", tmp_path / "wordnet"
